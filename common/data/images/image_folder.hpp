// common/data/images/image_folder.hpp - a folder with one sub-folder of PNG and JPEG files per
// class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/data/images/image_file.hpp"

namespace ddp {

/// The classes are the sub-folders in the order of their names' bytes, and the images of each are
/// its files *.png, *.jpg and *.jpeg in that order; other files are not looked at. All images have
/// the shape of the first one: no other is read before it is decoded.
class ImageFolder {
 public:
  /// @throws UsageError naming a folder that has no class, or a class that has no image
  explicit ImageFolder(const std::string& path);

  size_t size() const { return files_.size(); }
  const std::vector<std::string>& classes() const { return classes_; }
  const std::vector<int64_t>& labels() const { return labels_; }
  const ImageShape& shape() const { return shape_; }
  /// Without the folder's own name: "cat/1.png".
  const std::vector<std::string>& files() const { return files_; }

  /// Any number of threads may, see decode_image().
  void decode(size_t image, uint8_t* to) const;

 private:
  std::string path_;
  std::vector<std::string> classes_;
  std::vector<std::string> files_;
  std::vector<int64_t> labels_;  // of each file
  ImageShape shape_;
};

}  // namespace ddp
