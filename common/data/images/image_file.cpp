#include "common/data/images/image_file.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <memory>

#include "common/base/refuse.hpp"

namespace ddp {
namespace {

/// A larger one is damaged, or would fill the memory with one sample.
constexpr uint64_t kMostPixels = uint64_t{1} << 28;

[[noreturn]] void refuse_image(const std::string& path, const std::string& reason) {
  refuse("image {} {}", path, reason);
}

ImageShape checked(const std::string& path, uint64_t width, uint64_t height, int channels) {
  if (width == 0 || height == 0 || width > kMostPixels / height) {
    refuse_image(path,
                 fmt::format("has {}x{} pixels, expected 1 to {}", width, height, kMostPixels));
  }
  return {static_cast<int>(width), static_cast<int>(height), channels};
}

bool is_png(std::string_view bytes) {
  return bytes.starts_with("\x89PNG\r\n\x1a\n");
}

bool is_jpeg(std::string_view bytes) {
  return bytes.starts_with("\xff\xd8\xff");
}

/// libpng's simplified interface: its errors are return values and not jumps.
class Png {
 public:
  Png(const std::string& path, std::string_view bytes) : path_(path) {
    image_.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image_, bytes.data(), bytes.size()) == 0) {
      fail();
    }
  }
  ~Png() { png_image_free(&image_); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  ImageShape shape() const {
    if ((image_.format & PNG_FORMAT_FLAG_LINEAR) != 0) {
      refuse_image(path_, "has 16 bits per channel, expected 8");
    }
    return checked(path_, image_.width, image_.height,
                   (image_.format & PNG_FORMAT_FLAG_COLOR) != 0 ? 3 : 1);
  }
  void decode(uint8_t* to) {
    constexpr png_color kBlack{0, 0, 0};
    image_.format = shape().channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
    if (png_image_finish_read(&image_, &kBlack, to, /*row_stride=*/0, /*colormap=*/nullptr) == 0) {
      fail();
    }
  }

 private:
  [[noreturn]] void fail() const {
    refuse_image(path_, fmt::format("cannot be decoded: {}", image_.message));
  }

  const std::string& path_;
  png_image image_{};
};

class Jpeg {
 public:
  Jpeg(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {
    int width = 0;
    int height = 0;
    int subsampling = 0;
    int color_space = 0;
    if (decoder() == nullptr || tjDecompressHeader3(decoder(), data(), size(), &width, &height,
                                                    &subsampling, &color_space) != 0) {
      fail();
    }
    if (color_space == TJCS_CMYK || color_space == TJCS_YCCK) {
      refuse_image(path, "has four color channels, expected gray or red, green, blue");
    }
    shape_ = checked(path, static_cast<uint64_t>(width), static_cast<uint64_t>(height),
                     color_space == TJCS_GRAY ? 1 : 3);
  }

  const ImageShape& shape() const { return shape_; }
  void decode(uint8_t* to) {
    if (tjDecompress2(decoder(), data(), size(), to, shape_.width, /*pitch=*/0, shape_.height,
                      shape_.channels == 3 ? TJPF_RGB : TJPF_GRAY,
                      TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING) != 0) {
      fail();
    }
  }

 private:
  struct Destroy {
    void operator()(void* handle) const { tjDestroy(handle); }
  };
  /// One per thread: it keeps its tables from image to image.
  static tjhandle decoder() {
    thread_local const std::unique_ptr<void, Destroy> handle(tjInitDecompress());
    return handle.get();
  }
  const unsigned char* data() const {
    return reinterpret_cast<const unsigned char*>(bytes_.data());
  }
  unsigned long size() const { return bytes_.size(); }
  [[noreturn]] void fail() const {
    refuse_image(path_, fmt::format("cannot be decoded: {}", tjGetErrorStr2(decoder())));
  }

  const std::string& path_;
  std::string_view bytes_;
  ImageShape shape_;
};

/// Calls `use` with the decoder of what the file is.
template <typename Use>
auto with_decoder(const std::string& path, std::string_view bytes, const Use& use) {
  if (is_png(bytes)) {
    Png png(path, bytes);
    return use(png);
  }
  if (is_jpeg(bytes)) {
    Jpeg jpeg(path, bytes);
    return use(jpeg);
  }
  refuse_image(path, fmt::format("holds {} bytes that begin neither a PNG nor a JPEG file, "
                                 "expected one of these",
                                 bytes.size()));
}

}  // namespace

std::string to_string(const ImageShape& shape) {
  return fmt::format("{}x{} {}", shape.width, shape.height, shape.channels == 3 ? "RGB" : "gray");
}

ImageShape image_shape(const std::string& path, std::string_view bytes) {
  return with_decoder(path, bytes, [](const auto& image) { return image.shape(); });
}

void decode_image(const std::string& path, std::string_view bytes, const ImageShape& expected,
                  uint8_t* to) {
  with_decoder(path, bytes, [&](auto& image) {
    if (image.shape() != expected) {
      refuse_image(path, fmt::format("is {}, expected {} as the first image is",
                                     to_string(image.shape()), to_string(expected)));
    }
    image.decode(to);
  });
}

}  // namespace ddp
