// common/data/images/image_file.hpp - pixels of PNG and JPEG files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddp {

struct ImageShape {
  int width = 0;
  int height = 0;
  int channels = 0;  ///< 1: gray, 3: red, green, blue

  size_t bytes() const {
    return static_cast<size_t>(width) * static_cast<size_t>(height) * static_cast<size_t>(channels);
  }
  bool operator==(const ImageShape&) const = default;
};

/// "28x28 gray"
std::string to_string(const ImageShape& shape);

/// From the header alone. What it is is told by its first bytes, not by its name.
/// @param path for messages
/// @throws UsageError naming the file and what is wrong with it
ImageShape image_shape(const std::string& path, std::string_view bytes);

/// (height, width, channels), 8 bits each. Any number of threads may. Transparent parts are black.
/// @param to room for expected.bytes()
/// @throws UsageError naming the file if it is damaged or has another shape
void decode_image(const std::string& path, std::string_view bytes, const ImageShape& expected,
                  uint8_t* to);

}  // namespace ddp
