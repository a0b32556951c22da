#include "common/data/images/image_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/base/uninterrupted.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

bool has_image_name(const fs::path& path) {
  std::string extension = path.extension();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

/// Names in `folder` for which `is_wanted` is true, sorted.
template <typename Wanted>
std::vector<std::string> names_in(const fs::path& folder, const Wanted& is_wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with('.') && is_wanted(*entry)) {
      names.push_back(name);
    }
  }
  if (error) {
    refuse("folder of images {} cannot be read: {}", folder.native(), error.message());
  }
  std::ranges::sort(names);
  return names;
}

/// The file's bytes, in memory that the thread's next call uses again.
std::string_view read_file(const std::string& path) {
  thread_local std::string bytes;
  const FileDescriptor file(
      uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  size_t size = 0;
  ssize_t count = file.is_open() ? 1 : -1;
  while (count > 0) {
    if (size == bytes.size()) {
      bytes.resize(std::max(2 * size, size_t{1} << 16));
    }
    count =
        uninterrupted([&] { return read(file.get(), bytes.data() + size, bytes.size() - size); });
    size += count > 0 ? static_cast<size_t>(count) : 0;
  }
  if (count < 0) {
    refuse("image {} cannot be read: {}", path, std::strerror(errno));
  }
  return std::string_view(bytes).substr(0, size);
}

}  // namespace

ImageFolder::ImageFolder(const std::string& path) : path_(path) {
  std::error_code error;
  classes_ =
      names_in(path, [&](const fs::directory_entry& entry) { return entry.is_directory(error); });
  if (classes_.size() < 2) {
    refuse("folder of images {} has {} sub-folders, expected one per class, 2 or more", path,
           classes_.size());
  }
  for (size_t label = 0; label < classes_.size(); ++label) {
    const fs::path folder = fs::path(path) / classes_[label];
    const std::vector<std::string> names = names_in(
        folder, [](const fs::directory_entry& entry) { return has_image_name(entry.path()); });
    if (names.empty()) {
      refuse(
          "folder of images {} has no file *.png, *.jpg or *.jpeg, expected the images of a "
          "class",
          folder.native());
    }
    for (const std::string& name : names) {
      files_.push_back(classes_[label] + "/" + name);
    }
    labels_.resize(files_.size(), static_cast<int64_t>(label));
  }
  const std::string first = path + "/" + files_.front();
  shape_ = image_shape(first, read_file(first));
}

void ImageFolder::decode(size_t image, uint8_t* to) const {
  const std::string path = path_ + "/" + files_.at(image);
  decode_image(path, read_file(path), shape_, to);
}

}  // namespace ddp
