#include "common/data/images/image_file.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <memory>
#include <new>

#include "common/base/refuse.hpp"

namespace ddp {
namespace {

/// A larger one is damaged, or would fill the memory with one sample.
constexpr uint64_t kMostPixels = uint64_t{1} << 28;
constexpr uint64_t kMostUnpacked = 1032;  // bytes, of one in a PNG file

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

/// libpng reports an error by a jump. So its calls stand alone in succeeds(), within which nothing
/// has a destructor, and what they leave is freed by ~Memory().
class Png {
 public:
  Png(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {
    const png_structp png = memory_.png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, /*warn_fn=*/on_error);
    memory_.info = png != nullptr ? png_create_info_struct(png) : nullptr;
    if (memory_.info == nullptr) {
      throw std::bad_alloc();
    }
    check([&] {
      // What would have libpng convert colors (gAMA, sRGB, iCCP), and texts, but not transparency.
      png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
      png_set_read_fn(png, &bytes_, read);
      png_read_info(png, memory_.info);
    });
  }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  ImageShape shape() const {
    if (png_get_bit_depth(memory_.png, memory_.info) == 16) {
      refuse_image(path_, "has 16 bits per channel, expected 8");
    }
    const png_structp png = memory_.png;
    const uint64_t height = png_get_image_height(png, memory_.info);
    const ImageShape shape =
        checked(path_, png_get_image_width(png, memory_.info), height,
                (png_get_color_type(png, memory_.info) & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1);
    const uint64_t least = png_get_rowbytes(png, memory_.info) * height / kMostUnpacked;
    if (bytes_.size() < least) {  // before anybody has memory for the pixels
      refuse_image(path_, fmt::format("is {} in {} bytes, expected {} or more", to_string(shape),
                                      bytes_.size(), least));
    }
    return shape;
  }
  void decode(uint8_t* to) {
    const png_structp png = memory_.png;
    const ImageShape image = shape();
    const size_t row_bytes = image.bytes() / static_cast<size_t>(image.height);
    check([&] {
      constexpr png_color_16 kBlack{};
      png_set_expand(png);
      png_set_background(png, &kBlack, PNG_BACKGROUND_GAMMA_SCREEN, /*need_expand=*/0, 1.0);
      const int passes = png_set_interlace_handling(png);
      png_read_update_info(png, memory_.info);
      if (png_get_rowbytes(png, memory_.info) != row_bytes) {
        png_error(png, "rows of another size than the header says");
      }
      for (int pass = 0; pass < passes; ++pass) {
        for (int row = 0; row < image.height; ++row) {
          png_read_row(png, to + static_cast<size_t>(row) * row_bytes, nullptr);
        }
      }
      png_read_end(png, nullptr);
    });
  }

 private:
  struct Memory {
    Memory() = default;
    ~Memory() { png_destroy_read_struct(&png, &info, nullptr); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    png_structp png = nullptr;
    png_infop info = nullptr;
  };

  /// @return false if there was an error
  template <typename Calls>
  static bool succeeds(png_structp png, const Calls& calls) {
    if (setjmp(png_jmpbuf(png)) != 0) {
      return false;
    }
    calls();
    return true;
  }
  template <typename Calls>
  void check(const Calls& calls) const {
    if (!succeeds(memory_.png, calls)) {
      refuse_image(path_, fmt::format("cannot be decoded: {}", message_.data()));
    }
  }
  static void on_error(png_structp png, const char* message) {
    auto& to = static_cast<Png*>(png_get_error_ptr(png))->message_;
    std::strncpy(to.data(), message, to.size() - 1);
    png_longjmp(png, 1);
  }
  static void read(png_structp png, uint8_t* to, size_t size) {
    auto& left = *static_cast<std::string_view*>(png_get_io_ptr(png));
    if (size > left.size()) {
      png_error(png, "the file ends too early");
    }
    std::memcpy(to, left.data(), size);
    left.remove_prefix(size);
  }

  const std::string& path_;
  std::string_view bytes_;  // not read yet
  std::array<char, 128> message_{};
  Memory memory_;
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
                      TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS) != 0) {
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
