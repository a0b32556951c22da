// images_to_safetensors - a folder of images, or IDX files, as one file for --dataset. Images are
// decoded once, and one is in memory at a time.
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/next_file.hpp"
#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"
#include "common/data/images/image_folder.hpp"
#include "common/launch/run_main.hpp"

namespace ddp {
namespace {

using nlohmann::ordered_json;

constexpr const char* kVersion = "images_to_safetensors " DDP_VERSION "\n";
constexpr const char* kUsage =
    "Usage: images_to_safetensors IMAGES OUT.safetensors [--test IMAGES]\n"
    "Writes images as a file that a stage's --dataset reads without decoding anything.\n"
    "IMAGES is a FOLDER with one sub-folder of PNG and JPEG files per class, or two IDX files, as\n"
    "MNIST's, packed with gzip or not: the images' and the labels'. All images have one size.\n"
    "--test: images that are held out; without them a stage holds out a fifth.\n"
    "Also: --version, --help.\n"
    "Example: images_to_safetensors photos photos.safetensors\n"
    "Exit codes: 0 written, 1 the file cannot be written, 2 something is wrong with the images\n"
    "or the command line.\n";

/// Images that are read one after the other.
struct Images {
  std::vector<uint64_t> shape;  // of one: height, width, and 3 if it has colors
  std::vector<int64_t> labels;  // of each
  std::vector<std::string> classes;  // their names, if they have any
  std::function<void(NextFile& to)> copy_next;

  size_t bytes() const {
    size_t product = 1;
    for (const uint64_t extent : shape) {
      product *= extent;
    }
    return product;
  }
};

std::string_view as_text(const void* bytes, size_t size) {
  return {static_cast<const char*>(bytes), size};
}

Images open_folder(const std::string& path) {
  const auto folder = std::make_shared<const ImageFolder>(path);
  const ImageShape& shape = folder->shape();
  // Not touched before there are pixels for it: the first image's header may claim any size.
  const std::shared_ptr<uint8_t[]> pixels(new uint8_t[shape.bytes()]);
  Images images{{static_cast<uint64_t>(shape.height), static_cast<uint64_t>(shape.width)},
                folder->labels(),
                folder->classes(),
                [folder, pixels, next = size_t{0}](NextFile& to) mutable {
                  folder->decode(next++, pixels.get());
                  to.write(as_text(pixels.get(), folder->shape().bytes()));
                }};
  if (shape.channels > 1) {
    images.shape.push_back(static_cast<uint64_t>(shape.channels));
  }
  return images;
}

/// The numbers of an IDX file, packed or not.
class IdxFile {
 public:
  /// @param dimensions that it must have
  IdxFile(const std::string& path, size_t dimensions)
      : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (file_ == nullptr) {
      refuse("IDX file {} cannot be opened: {}", path, std::strerror(errno));
    }
    const uint32_t magic = read_word();
    const auto expected = static_cast<uint32_t>(0x0800 + dimensions);
    if (magic != expected) {
      refuse("IDX file {} begins with {:08x}, expected {:08x}: unsigned bytes of {} dimensions",
             path, magic, expected, dimensions);
    }
    while (sizes_.size() < dimensions) {
      sizes_.push_back(read_word());
    }
  }

  const std::string& path() const { return path_; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  /// In pieces: the header may claim more than there is, and more than there is memory for.
  template <typename Use>
  void read(uint64_t count, const Use& use) {
    std::array<uint8_t, size_t{1} << 16> piece;
    while (count > 0) {
      const size_t size = std::min(count, uint64_t{piece.size()});
      const z_size_t got = gzfread(piece.data(), 1, size, file_.get());
      read_ += got;
      if (got != size) {
        refuse("IDX file {} ends after {} bytes of data, expected {} numbers", path_, read_,
               expected());
      }
      use(piece.data(), size);
      count -= size;
    }
  }
  void check_end() {
    if (gzgetc(file_.get()) != -1) {
      refuse("IDX file {} goes on after {} numbers, expected its end", path_, expected());
    }
  }

 private:
  std::string expected() const {
    std::string text;
    for (const uint64_t size : sizes_) {
      text += (text.empty() ? "" : " x ") + std::to_string(size);
    }
    return text;
  }
  uint32_t read_word() {
    std::array<uint8_t, 4> bytes{};
    if (gzfread(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) {
      refuse("IDX file {} ends within its header, expected sizes", path_);
    }
    uint32_t word = 0;
    for (const uint8_t byte : bytes) {
      word = word << 8U | byte;
    }
    return word;
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  std::vector<uint64_t> sizes_;
  size_t read_ = 0;
};

Images open_idx(const std::string& images_path, const std::string& labels_path) {
  constexpr uint64_t kMostPixels = uint64_t{1} << 28;
  const auto pixels = std::make_shared<IdxFile>(images_path, 3);
  IdxFile labels(labels_path, 1);
  const uint64_t count = pixels->sizes()[0];
  const uint64_t height = pixels->sizes()[1];
  const uint64_t width = pixels->sizes()[2];
  if (count == 0 || height == 0 || width == 0 || height * width > kMostPixels) {
    refuse("IDX file {} holds {} images of {}x{}, expected images of 1 to {} pixels", images_path,
           count, width, height, kMostPixels);
  }
  if (labels.sizes()[0] != count) {
    refuse("IDX file {} holds {} labels, expected {}, one for each image of {}", labels_path,
           labels.sizes()[0], count, images_path);
  }
  std::vector<int64_t> classes;
  labels.read(count, [&](const uint8_t* piece, size_t size) {
    classes.insert(classes.end(), piece, piece + size);
  });
  labels.check_end();
  return {{height, width},
          std::move(classes),
          {},
          [pixels, count, bytes = height * width, next = uint64_t{0}](NextFile& to) mutable {
            pixels->read(
                bytes, [&](const uint8_t* piece, size_t size) { to.write(as_text(piece, size)); });
            if (++next == count) {
              pixels->check_end();
            }
          }};
}

/// @param paths a folder, or IDX files of images and labels
Images open_images(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? open_folder(paths[0]) : open_idx(paths[0], paths[1]);
}

std::atomic<const char*> unfinished = nullptr;

void remove_and_end(int signal) {
  if (const char* const path = unfinished) {
    unlink(path);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);  // comes when this handler has ended
}

/// While there is one, Ctrl-C and the like remove a file before they end this process.
class Removal {
 public:
  explicit Removal(const std::string& path) {
    unfinished = path.c_str();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      if (std::signal(signal, remove_and_end) == SIG_IGN) {
        std::signal(signal, SIG_IGN);
      }
    }
  }
  ~Removal() { unfinished = nullptr; }
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;
};

/// Labels before pixels: they need addresses that are multiples of 8.
std::string header_of(const std::vector<std::pair<std::string, const Images*>>& parts) {
  ordered_json root;
  if (const auto& classes = parts.front().second->classes; !classes.empty()) {
    // In safetensors metadata is text.
    root["__metadata__"]["classes"] =
        ordered_json(classes).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
  uint64_t end = 0;
  const auto add = [&](const std::string& name, const char* dtype,
                       const std::vector<uint64_t>& shape, uint64_t bytes) {
    root[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  for (const auto& [prefix, images] : parts) {
    const uint64_t count = images->labels.size();
    add(prefix + "labels", "I64", {count}, count * sizeof(int64_t));
  }
  for (const auto& [prefix, images] : parts) {
    std::vector<uint64_t> shape = images->shape;
    shape.insert(shape.begin(), images->labels.size());
    add(prefix + "features", "U8", shape, images->labels.size() * images->bytes());
  }
  std::string header = root.dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

void write_file(const std::string& path, const Images& train, const std::optional<Images>& test) {
  std::vector<std::pair<std::string, const Images*>> parts = {{"", &train}};
  if (test) {
    parts.emplace_back("test_", &*test);
  }
  const std::string header = header_of(parts);
  const uint64_t header_bytes = header.size();  // little endian, as every machine this runs on
  size_t file_bytes = sizeof(header_bytes) + header.size();
  for (const auto& [prefix, images] : parts) {
    file_bytes += images->labels.size() * (sizeof(int64_t) + images->bytes());
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond ulimit -f is to fail
  NextFile file("data file", path, file_bytes);
  const Removal removal(file.temporary());
  file.write(as_text(&header_bytes, sizeof(header_bytes)));
  file.write(header);
  for (const auto& [prefix, images] : parts) {
    file.write(as_text(images->labels.data(), images->labels.size() * sizeof(int64_t)));
  }
  for (const auto& [prefix, images] : parts) {
    for (size_t i = 0; i < images->labels.size(); ++i) {
      images->copy_next(file);
    }
  }
  file.take_place(/*keep_old=*/false);
}

std::string described(const std::vector<uint64_t>& shape) {
  return fmt::format("{}x{} {}", shape[1], shape[0], shape.size() > 2 ? "RGB" : "gray");
}

/// @return what was done
std::string convert(const std::vector<std::string>& sources, const std::string& path,
                    const std::vector<std::string>& test_sources) {
  const Images train = open_images(sources);
  std::optional<Images> test;
  if (!test_sources.empty()) {
    test = open_images(test_sources);
    if (test->shape != train.shape || test->classes != train.classes) {
      refuse("--test: got {} images of {} classes, expected {} of the same {} classes as {}",
             described(test->shape), test->classes.size(), described(train.shape),
             train.classes.size(), sources[0]);
    }
  }
  write_file(path, train, test);
  return fmt::format("{}: {} + {} images, {}\n", path, train.labels.size(),
                     test ? test->labels.size() : 0, described(train.shape));
}

std::string run(const std::vector<std::string>& arguments) {
  std::vector<std::string> paths;
  std::vector<std::string> test_paths;
  bool is_test = false;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      return kUsage;
    }
    if (argument == "--version") {
      return kVersion;
    }
    if (argument == "--test" && !is_test) {
      is_test = true;
    } else if (argument.starts_with("--")) {
      refuse("got {}, expected --test once, --version or --help", quote(argument));
    } else {
      (is_test ? test_paths : paths).push_back(argument);
    }
  }
  if (paths.size() < 2 || paths.size() > 3 || !paths.back().ends_with(".safetensors")) {
    refuse(
        "got {}, expected a folder, or IDX files of images and labels, and then "
        "OUT.safetensors; --help says more",
        paths.empty()
            ? "no arguments"
            : quote(paths.back()) + " as the last of " + std::to_string(paths.size()) + " names");
  }
  if (is_test && (test_paths.empty() || test_paths.size() > 2)) {
    refuse("--test: got {} names, expected a folder, or IDX files of images and labels",
           test_paths.size());
  }
  const std::string out = paths.back();
  paths.pop_back();
  return convert(paths, out, test_paths);
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  return ddp::internal::guarded(argc, argv, [argc, argv](std::string&) {
    std::cout << ddp::run({argv + 1, argv + argc});
    return static_cast<int>(ddp::ExitCode::kDone);
  });
}
