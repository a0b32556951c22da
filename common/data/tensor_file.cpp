#include "common/data/tensor_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "common/base/mapped_file.hpp"
#include "common/base/next_file.hpp"
#include "common/base/parse.hpp"
#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/base/uninterrupted.hpp"

namespace ddp {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
constexpr uint64_t kMaxDataHeaderBytes = uint64_t{1} << 20;  // of some ten tensors, in no time
constexpr size_t kPieceBytes = size_t{1} << 20;  // in cache from the hash to the file
const std::string kNoHash(32, '0');
const std::string kHashKey = "\"xxh3_128\":\"";

struct Dtype {
  const char* name;  // in safetensors
  torch::ScalarType type;
};
constexpr Dtype kDtypes[] = {{"F64", torch::kFloat64}, {"F32", torch::kFloat32},
                             {"F16", torch::kFloat16}, {"BF16", torch::kBFloat16},
                             {"I64", torch::kInt64},   {"I32", torch::kInt32},
                             {"U8", torch::kUInt8},    {"BOOL", torch::kBool}};

/// What is wrong with a file that is no safetensors file, or no whole one.
class Malformed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse_snapshot(const std::string& path, const std::string& reason) {
  throw Error(ExitCode::kSnapshotRefused, fmt::format("snapshot {} {}", path, reason));
}

/// Where the checksum's digits stand. The checksum covers the file with zeros in their place.
/// @return npos if there are none
size_t hash_position(const std::string& header) {
  const size_t key = header.find(kHashKey);
  return key == std::string::npos || key + kHashKey.size() + kNoHash.size() > header.size()
             ? std::string::npos
             : key + kHashKey.size();
}

void read_exactly(const std::string& path, int fd, char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t count = uninterrupted([&] { return read(fd, bytes, size); });
    if (count <= 0) {
      refuse_snapshot(path, std::string("cannot be read: ") +
                                (count < 0 ? std::strerror(errno) : "it became shorter meanwhile"));
    }
    bytes += count;
    size -= static_cast<size_t>(count);
  }
}

/// @param file_bytes at least those that say how long the header is
void check_header_size(uint64_t header_bytes, size_t file_bytes, uint64_t most) {
  if (header_bytes > most || header_bytes > file_bytes - sizeof(header_bytes)) {
    throw Malformed(
        fmt::format("is no safetensors file: its header claims {} of {} bytes, "
                    "expected at most {}",
                    header_bytes, file_bytes, most));
  }
}

/// A file of which the beginning has been read.
struct OpenFile {
  explicit OpenFile(const std::string& path)
      : file(uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); })) {
    struct stat status {};
    if (!file.is_open() || fstat(file.get(), &status) != 0) {
      refuse_snapshot(path, std::string("cannot be read: ") + std::strerror(errno));
    }
    const auto file_bytes = static_cast<size_t>(status.st_size);
    uint64_t header_bytes = 0;
    if (file_bytes < sizeof(header_bytes)) {
      refuse_snapshot(path, fmt::format("holds {} bytes, expected a safetensors file", file_bytes));
    }
    read_exactly(path, file.get(), reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
    check_header_size(header_bytes, file_bytes, kMaxHeaderBytes);
    header.resize(header_bytes);
    read_exactly(path, file.get(), header.data(), header.size());
    data_bytes = file_bytes - sizeof(header_bytes) - header_bytes;
  }

  FileDescriptor file;
  std::string header;
  size_t data_bytes = 0;
};

/// What a file consists of.
struct Content {
  std::string header;
  torch::Tensor data;  // bytes, one-dimensional
};

/// Of a file whose checksum matches.
/// @param keep_data false: the data is read, but the content has none
Content read_content(const std::string& path, bool keep_data) {
  const OpenFile open_file(path);
  const size_t data_bytes = open_file.data_bytes;
  Content content{.header = open_file.header, .data = {}};
  const size_t position = hash_position(content.header);
  if (position == std::string::npos) {
    refuse_snapshot(path, "has no checksum, expected a file that this suite wrote");
  }
  const std::string stored = content.header.substr(position, kNoHash.size());
  content.header.replace(position, kNoHash.size(), kNoHash);
  Hash hash;
  hash.update(content.header);
  const size_t kept_bytes = keep_data ? data_bytes : std::min(data_bytes, kPieceBytes);
  content.data = torch::empty({static_cast<int64_t>(kept_bytes)}, torch::kUInt8);
  char* const data = static_cast<char*>(content.data.mutable_data_ptr());
  for (size_t begin = 0; begin < data_bytes; begin += kPieceBytes) {
    char* const piece = data + (keep_data ? begin : 0);
    const size_t size = std::min(kPieceBytes, data_bytes - begin);
    read_exactly(path, open_file.file.get(), piece, size);
    hash.update(piece, size);
  }
  if (hash.hex() != stored) {
    refuse_snapshot(path, "is damaged: its checksum does not match");
  }
  return content;
}

bool is_whole(const std::string& path) {
  try {
    read_content(path, /*keep_data=*/false);
    return true;
  } catch (const Error&) {
    return false;
  } catch (const Malformed&) {
    return false;
  }
}

/// One tensor of the header, checked against what is there.
/// @param position where its data must begin; then where it ends
/// @param may_copy what does not lie on an address that its dtype needs
/// @return a view of the data
torch::Tensor read_tensor(const std::string& name, const ordered_json& entry,
                          const torch::Tensor& data, bool may_copy, size_t& position) {
  const auto malformed = [&](const std::string& has, const std::string& expected) {
    return Malformed(fmt::format("has tensor {} {}, expected {}", quote(name), has, expected));
  };
  const std::string dtype_name = entry.at("dtype").get<std::string>();
  const auto dtype = std::ranges::find(kDtypes, dtype_name, &Dtype::name);
  if (dtype == std::end(kDtypes)) {
    throw malformed("of dtype " + quote(dtype_name), "F64, F32, F16, BF16, I64, I32, U8 or BOOL");
  }
  const std::string shape_text = shorten(entry.at("shape").dump());
  if (!std::ranges::all_of(entry.at("shape"), &ordered_json::is_number_unsigned)) {
    throw malformed("of shape " + shape_text, "whole numbers");  // 1.5 would be read as 1
  }
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const size_t unit = c10::elementSize(dtype->type);
  size_t bytes = unit;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes)) {
      throw malformed("of shape " + shape_text, "a size that fits into a file");
    }
  }
  if (bytes > data.nbytes() - position ||
      entry.at("data_offsets") != ordered_json{position, position + bytes}) {
    throw malformed(
        "of " + std::to_string(bytes) + " bytes at " + shorten(entry.at("data_offsets").dump()),
        fmt::format("one that begins at {} of {} bytes of data, and ends within them", position,
                    data.nbytes()));
  }
  const torch::Tensor raw =
      data.narrow(0, static_cast<int64_t>(position), static_cast<int64_t>(bytes));
  position += bytes;
  // LibTorch looks at the distance from the data's beginning, the processor at the address.
  const bool aligned = static_cast<size_t>(raw.storage_offset()) % unit == 0 &&
                       reinterpret_cast<uintptr_t>(raw.const_data_ptr()) % unit == 0;
  if (!aligned && !may_copy) {
    throw malformed(fmt::format("of dtype {} that is not aligned", dtype_name),
                    fmt::format("header and data before it of a multiple of {} bytes", unit));
  }
  return (aligned ? raw : raw.clone()).view(dtype->type).view(shape);
}

/// What is not nested deeper than any safetensors file's: all that follows goes down by recursion.
ordered_json parse_header(const std::string& header) {
  constexpr int kMostDepth = 4;
  const auto look = [](int depth, ordered_json::parse_event_t /*event*/, ordered_json& /*parsed*/) {
    if (depth > kMostDepth) {
      throw Malformed("has a header that is nested too deeply");
    }
    return true;
  };
  return ordered_json::parse(header, look);
}

/// A tensor that nobody wants, of whatever dtype. @param position as in read_tensor()
void skip_tensor(const std::string& name, const ordered_json& entry, size_t data_bytes,
                 size_t& position) {
  const auto offsets = entry.at("data_offsets").get<std::array<size_t, 2>>();
  if (offsets[0] != position || offsets[1] < position || offsets[1] > data_bytes) {
    throw Malformed(
        fmt::format("has tensor {} at {}, expected one that begins at {} of {} bytes "
                    "of data, and ends within them",
                    quote(name), shorten(entry.at("data_offsets").dump()), position, data_bytes));
  }
  position = offsets[1];
}

/// @param data bytes that the tensors are views of
/// @param wanted names, of tensors that are not copied; null: all, which may be
TensorFile parse(const std::string& header, const torch::Tensor& data,
                 const std::vector<std::string>* wanted) {
  TensorFile file;
  const ordered_json root = parse_header(header);
  std::vector<std::pair<std::string, ordered_json>> entries;
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
    } else {
      entries.emplace_back(name, entry);
    }
  }
  // Other writers may list them in another order than they lie in.
  std::ranges::stable_sort(entries, {}, [](const auto& entry) {
    return entry.second.at("data_offsets").at(0).template get<size_t>();
  });
  size_t position = 0;
  for (const auto& [name, entry] : entries) {
    if (wanted != nullptr && std::ranges::find(*wanted, name) == wanted->end()) {
      skip_tensor(name, entry, data.nbytes(), position);
    } else {
      file.tensors.emplace_back(name, read_tensor(name, entry, data, wanted == nullptr, position));
    }
  }
  if (position != data.nbytes()) {
    throw Malformed(fmt::format("holds {} bytes of data, expected {}", data.nbytes(), position));
  }
  return file;
}

/// Of the exception that is being handled, if it is one of a file's content.
std::string what_is_wrong() {
  try {
    throw;
  } catch (const Malformed& error) {
    return error.what();
  } catch (const nlohmann::json::exception& error) {
    return "has a malformed header: " + shorten(error.what());
  } catch (const c10::Error& error) {
    return std::string("cannot be read: ") + error.what_without_backtrace();
  }
}

/// Without the checksum.
std::string header_of(const TensorFile& file) {
  ordered_json root;
  root["__metadata__"] = file.metadata;
  root["__metadata__"]["xxh3_128"] = kNoHash;
  size_t end = 0;
  for (const auto& [name, tensor] : file.tensors) {
    const auto dtype = std::ranges::find(kDtypes, tensor.scalar_type(), &Dtype::type);
    TORCH_CHECK(dtype != std::end(kDtypes), "Expected a dtype that safetensors has, got ",
                tensor.scalar_type());
    const size_t begin = end;
    end += tensor.nbytes();
    root[name] = {
        {"dtype", dtype->name}, {"shape", tensor.sizes().vec()}, {"data_offsets", {begin, end}}};
  }
  std::string header = root.dump();
  header.append((8 - header.size() % 8) % 8, ' ');  // so that the data is aligned
  return header;
}

}  // namespace

void write_tensor_file(const std::string& path, const TensorFile& file) {
  const std::string header = header_of(file);
  const uint64_t header_bytes = header.size();  // little endian, as every machine LibTorch runs on
  size_t file_bytes = sizeof(header_bytes) + header.size();
  for (const auto& [name, tensor] : file.tensors) {
    file_bytes += tensor.nbytes();
  }
  NextFile next("snapshot", path, file_bytes);
  next.write({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)});
  next.write(header);
  Hash hash;
  hash.update(header);
  for (const auto& [name, tensor] : file.tensors) {
    const torch::Tensor host = tensor.detach().to(torch::kCPU).contiguous();
    std::string_view bytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kPieceBytes);
      hash.update(piece.data(), piece.size());
      next.write(piece);
      bytes.remove_prefix(piece.size());
    }
  }
  next.overwrite(static_cast<off_t>(sizeof(header_bytes) + hash_position(header)), hash.hex());
  // A damaged file must not take the place of a good one.
  next.take_place(/*keep_old=*/is_whole(path));
}

std::map<std::string, std::string> read_tensor_file_metadata(const std::string& path) {
  try {
    return parse_header(OpenFile(path).header)
        .at("__metadata__")
        .get<std::map<std::string, std::string>>();
  } catch (const Error&) {
    throw;
  } catch (...) {
    refuse_snapshot(path, what_is_wrong());
  }
}

TensorFile read_tensor_file(const std::string& path) {
  try {
    const Content content = read_content(path, /*keep_data=*/true);
    return parse(content.header, content.data, /*wanted=*/nullptr);
  } catch (const Error&) {
    throw;
  } catch (...) {
    refuse_snapshot(path, what_is_wrong());
  }
}

TensorFile map_tensor_file(const std::string& path, const std::vector<std::string>& names) {
  const auto file = std::make_shared<const MappedFile>(path);
  const std::string_view bytes = file->bytes();
  try {
    uint64_t header_bytes = 0;
    if (bytes.size() < sizeof(header_bytes)) {
      throw Malformed(fmt::format("holds {} bytes, expected a safetensors file", bytes.size()));
    }
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    check_header_size(header_bytes, bytes.size(), kMaxDataHeaderBytes);
    const std::string_view data = bytes.substr(sizeof(header_bytes) + header_bytes);
    const torch::Tensor memory = torch::from_blob(
        const_cast<char*>(data.data()), {static_cast<int64_t>(data.size())},
        /*deleter=*/[file](void*) {}, torch::kUInt8);
    return parse(std::string(bytes.substr(sizeof(header_bytes), header_bytes)), memory, &names);
  } catch (...) {
    refuse("data file {} {}", path, what_is_wrong());
  }
}

}  // namespace ddp
