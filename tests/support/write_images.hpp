// tests/support/write_images.hpp - PNG and JPEG files of given pixels.
#pragma once

#include <png.h>
#include <turbojpeg.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/data/images/image_file.hpp"

namespace ddp::test {

inline void write_png(const std::string& path, const ImageShape& shape,
                      const std::vector<uint8_t>& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(shape.width);
  image.height = static_cast<png_uint_32>(shape.height);
  image.format = shape.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  if (png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error(path + ": " + image.message);
  }
}

inline void write_jpeg(const std::string& path, const ImageShape& shape,
                       const std::vector<uint8_t>& pixels) {
  const tjhandle encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool color = shape.channels == 3;
  const int failed = tjCompress2(
      encoder, pixels.data(), shape.width, 0, shape.height, color ? TJPF_RGB : TJPF_GRAY, &bytes,
      &size, color ? TJSAMP_420 : TJSAMP_GRAY, /*jpegQual=*/90, TJFLAG_ACCURATEDCT);
  if (failed == 0) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  }
  tjFree(bytes);
  tjDestroy(encoder);
  if (failed != 0) {
    throw std::runtime_error(path + ": cannot be encoded");
  }
}

}  // namespace ddp::test
