#include "common/data/tensor_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
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
#include "common/base/refuse.hpp"

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

void check_size(size_t file_bytes) {
  if (file_bytes < sizeof(uint64_t)) {
    throw Malformed(fmt::format("holds {} bytes, expected a safetensors file", file_bytes));
  }
}

/// @param file_bytes after check_size()
void check_header_size(uint64_t header_bytes, size_t file_bytes, uint64_t most) {
  if (header_bytes > most || header_bytes > file_bytes - sizeof(header_bytes)) {
    throw Malformed(
        fmt::format("is no safetensors file: its header claims {} of {} bytes, "
                    "expected at most {}",
                    header_bytes, file_bytes, most));
  }
}

/// A snapshot of which the header has been read; the data comes next.
class OpenSnapshot {
 public:
  explicit OpenSnapshot(const std::string& path) : in_(path, std::ios::binary | std::ios::ate) {
    const auto file_bytes = static_cast<size_t>(in_.tellg());
    if (!in_.seekg(0)) {
      throw Malformed(std::string("cannot be read: ") + std::strerror(errno));
    }
    check_size(file_bytes);
    uint64_t header_bytes = 0;
    read(&header_bytes, sizeof(header_bytes));
    check_header_size(header_bytes, file_bytes, kMaxHeaderBytes);
    header.resize(header_bytes);
    read(header.data(), header_bytes);
    data_bytes = file_bytes - sizeof(header_bytes) - header_bytes;
  }

  void read(void* bytes, size_t size) {
    if (!in_.read(static_cast<char*>(bytes), static_cast<std::streamsize>(size))) {
      throw Malformed(std::string("cannot be read: ") +
                      (in_.eof() ? "it became shorter meanwhile" : std::strerror(errno)));
    }
  }

  std::string header;
  size_t data_bytes = 0;

 private:
  std::ifstream in_;
};

/// The data of a snapshot whose checksum matches.
/// @param keep false: it is read piece by piece, and the last piece is returned
torch::Tensor read_data(OpenSnapshot& snapshot, bool keep) {
  const size_t position = hash_position(snapshot.header);
  if (position == std::string::npos) {
    throw Malformed("has no checksum, expected a file that this suite wrote");
  }
  std::string header = snapshot.header;
  header.replace(position, kNoHash.size(), kNoHash);
  Hash hash;
  hash.update(header);
  const size_t kept_bytes = keep ? snapshot.data_bytes : std::min(snapshot.data_bytes, kPieceBytes);
  torch::Tensor data = torch::empty({static_cast<int64_t>(kept_bytes)}, torch::kUInt8);
  for (size_t begin = 0; begin < snapshot.data_bytes; begin += kPieceBytes) {
    char* const piece = static_cast<char*>(data.mutable_data_ptr()) + (keep ? begin : 0);
    const size_t size = std::min(kPieceBytes, snapshot.data_bytes - begin);
    snapshot.read(piece, size);
    hash.update(piece, size);
  }
  if (hash.hex() != snapshot.header.substr(position, kNoHash.size())) {
    throw Malformed("is damaged: its checksum does not match");
  }
  return data;
}

bool is_whole(const std::string& path) {
  try {
    OpenSnapshot snapshot(path);
    read_data(snapshot, /*keep=*/false);
    return true;
  } catch (const Malformed&) {
    return false;
  }
}

/// @param bytes of the data, of this tensor alone
/// @param may_copy what does not lie on an address that its dtype needs
/// @return a view of them
torch::Tensor view_of(const std::string& name, const ordered_json& entry,
                      const torch::Tensor& bytes, bool may_copy) {
  const auto malformed = [&](const std::string& has, const std::string& expected) {
    return Malformed(fmt::format("has tensor {} {}, expected {}", quote(name), has, expected));
  };
  const std::string dtype_name = entry.at("dtype").get<std::string>();
  const auto dtype = std::ranges::find(kDtypes, dtype_name, &Dtype::name);
  if (dtype == std::end(kDtypes)) {
    throw malformed("of dtype " + quote(dtype_name), "F64, F32, F16, BF16, I64, I32, U8 or BOOL");
  }
  const size_t unit = c10::elementSize(dtype->type);
  std::vector<int64_t> shape;
  size_t size = unit;
  bool fits = entry.at("shape").is_array();
  for (const ordered_json& extent : entry.at("shape")) {
    fits = fits && extent.is_number_unsigned() &&  // 1.5 would be read as 1
           !__builtin_mul_overflow(size, extent.get<size_t>(), &size);
    shape.push_back(fits ? extent.get<int64_t>() : 0);
  }
  if (!fits || size != bytes.nbytes()) {
    throw malformed(fmt::format("of dtype {} and shape {} in {} bytes", dtype_name,
                                shorten(entry.at("shape").dump()), bytes.nbytes()),
                    "whole numbers that make as many bytes");
  }
  // LibTorch looks at the distance from the data's beginning, the processor at the address.
  const bool aligned = static_cast<size_t>(bytes.storage_offset()) % unit == 0 &&
                       reinterpret_cast<uintptr_t>(bytes.const_data_ptr()) % unit == 0;
  if (!aligned && !may_copy) {
    throw malformed(fmt::format("of dtype {} that is not aligned", dtype_name),
                    fmt::format("header and data before it of a multiple of {} bytes", unit));
  }
  return (aligned ? bytes : bytes.clone()).view(dtype->type).view(shape);
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
  const auto offsets = [](const auto& entry) {
    return entry.second.at("data_offsets").template get<std::array<size_t, 2>>();
  };
  std::ranges::stable_sort(entries, {}, offsets);
  size_t position = 0;
  for (const auto& entry : entries) {
    const auto& [name, described] = entry;
    const auto [begin, end] = offsets(entry);
    if (begin != position || end < begin || end > data.nbytes()) {
      throw Malformed(fmt::format(
          "has tensor {} at {}, expected one that begins at {} of {} bytes of data, and ends "
          "within them",
          quote(name), shorten(described.at("data_offsets").dump()), position, data.nbytes()));
    }
    position = end;
    if (wanted == nullptr || std::ranges::find(*wanted, name) != wanted->end()) {
      const torch::Tensor bytes =
          data.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(end - begin));
      file.tensors.emplace_back(name, view_of(name, described, bytes, wanted == nullptr));
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
    return parse_header(OpenSnapshot(path).header)
        .at("__metadata__")
        .get<std::map<std::string, std::string>>();
  } catch (...) {
    refuse_snapshot(path, what_is_wrong());
  }
}

TensorFile read_tensor_file(const std::string& path) {
  try {
    OpenSnapshot snapshot(path);
    const torch::Tensor data = read_data(snapshot, /*keep=*/true);
    return parse(snapshot.header, data, /*wanted=*/nullptr);
  } catch (...) {
    refuse_snapshot(path, what_is_wrong());
  }
}

TensorFile map_tensor_file(const std::string& path, const std::vector<std::string>& names) {
  const auto file = std::make_shared<const MappedFile>(path);
  const std::string_view bytes = file->bytes();
  try {
    check_size(bytes.size());
    uint64_t header_bytes = 0;
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
