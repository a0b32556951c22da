#include "common/data/tensor_file.hpp"

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/hash.hpp"
#include "common/base/parse.hpp"

namespace ddp {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;  // for writing; it is a list, too slow to read many tensors

const std::string kNoHash(32, '0');
constexpr std::string_view kHashKey = "\"xxh3_128\":\"";

struct Dtype {
  const char* name;  ///< name in safetensors
  torch::ScalarType type;
};
constexpr Dtype kDtypes[] = {{"F64", torch::kFloat64}, {"F32", torch::kFloat32},
                             {"F16", torch::kFloat16}, {"BF16", torch::kBFloat16},
                             {"I64", torch::kInt64},   {"I32", torch::kInt32},
                             {"U8", torch::kUInt8},    {"BOOL", torch::kBool}};

/// Message of the current exception if the file is at fault; else rethrows it.
std::string reason() {
  try {
    throw;
  } catch (const UsageError& error) {
    return error.what();
  } catch (const nlohmann::json::parse_error& error) {
    return fmt::format("got no JSON at byte {} of the header, expected a safetensors file",
                       error.byte);
  } catch (const nlohmann::json::exception&) {
    return "got a header with other fields, expected dtype, shape and data_offsets of each tensor, "
           "and texts in __metadata__";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

/// Parts of a safetensors file after the header's size.
struct Parts {
  std::string_view header;  ///< JSON
  std::string_view data;
};

Parts split(std::string_view bytes) {
  constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
  uint64_t header_bytes = 0;  // little endian, as every machine is that LibTorch runs on
  if (bytes.size() < sizeof(header_bytes)) {
    refuse("got {} bytes, expected a safetensors file", bytes.size());
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  bytes.remove_prefix(sizeof(header_bytes));
  if (const auto most = std::min(kMaxHeaderBytes, uint64_t{bytes.size()}); header_bytes > most) {
    refuse("got a header of {} bytes, expected a safetensors file: at most {}", header_bytes, most);
  }
  return {bytes.substr(0, header_bytes), bytes.substr(header_bytes)};
}

/// Position of the checksum's digits in the header. The checksum covers header and data, with
/// zeros in place of the digits.
size_t hash_position(std::string_view header) {
  const size_t key = header.find(kHashKey);
  if (key == std::string_view::npos || header.size() - key < kHashKey.size() + kNoHash.size()) {
    refuse("got no checksum, expected a file that this suite wrote");
  }
  return key + kHashKey.size();
}

void check_hash(const Parts& parts) {
  const size_t position = hash_position(parts.header);
  std::string header(parts.header);
  header.replace(position, kNoHash.size(), kNoHash);
  if (Hash().update(header).update(parts.data.data(), parts.data.size()).hex() !=
      parts.header.substr(position, kNoHash.size())) {
    refuse("got another checksum than the file says, expected an undamaged file");
  }
}

bool is_whole(const std::string& path) {
  try {
    check_hash(split(MappedFile(path).bytes()));
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

/// Parses the header. Refuses deep nesting at once: each level takes 80 bytes of memory, and
/// functions such as dump() recurse.
json parse_header(std::string_view header) {
  return json::parse(header, [](int depth, json::parse_event_t event, const json&) {
    if (depth > 2 &&
        (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start)) {
      refuse("got a header that is nested too deeply");
    }
    return true;
  });
}

/// @param entry the tensor's entry in the header @param bytes the tensor's bytes
/// @return a view of the bytes, or a copy if they are not aligned for the dtype
torch::Tensor tensor_of(const std::string& name, const json& entry, const torch::Tensor& bytes) {
  const auto dtype_name = entry.at("dtype").get<std::string>();
  const auto dtype = std::ranges::find(kDtypes, dtype_name, &Dtype::name);
  if (dtype == std::end(kDtypes)) {
    refuse("got tensor {} of dtype {}, expected F64, F32, F16, BF16, I64, I32, U8 or BOOL",
           quote(name), quote(dtype_name));
  }
  const size_t unit = c10::elementSize(dtype->type);
  std::vector<int64_t> shape;
  size_t size = unit;
  bool fits = entry.at("shape").is_array();
  for (const json& extent : entry.at("shape")) {
    fits = fits && extent.is_number_unsigned() &&  // 1.5 would be read as 1
           !__builtin_mul_overflow(size, extent.get<size_t>(), &size);
    shape.push_back(fits ? extent.get<int64_t>() : 0);
  }
  if (!fits || size != bytes.nbytes()) {
    refuse("got tensor {} of dtype {} and shape {} in {} bytes, expected as many as its shape",
           quote(name), dtype_name, shorten(entry.at("shape").dump()), bytes.nbytes());
  }
  // LibTorch looks at the distance from the data's beginning, the processor at the address.
  const bool aligned = static_cast<size_t>(bytes.storage_offset()) % unit == 0 &&
                       reinterpret_cast<uintptr_t>(bytes.const_data_ptr()) % unit == 0;
  return (aligned ? bytes : bytes.clone()).view(dtype->type).view(shape);
}

/// @param data bytes that the tensors become views of
/// @param wanted names of the tensors to return; null: all
TensorFile parse(std::string_view header, const torch::Tensor& data,
                 const std::vector<std::string>* wanted) {
  TensorFile file;
  const json root = parse_header(header);
  std::vector<std::pair<std::string, json>> entries;
  for (const auto& [name, entry] : root.items()) {
    if (name != "__metadata__") {
      entries.emplace_back(name, entry);
    } else if (!entry.is_null()) {
      file.metadata = entry.get<std::map<std::string, std::string>>();
    }
  }
  // The order of the header may differ from the order of the data.
  const auto offsets = [](const auto& entry) {
    return entry.second.at("data_offsets").template get<std::array<size_t, 2>>();
  };
  std::ranges::stable_sort(entries, {}, offsets);
  size_t position = 0;
  for (const auto& entry : entries) {
    const auto& [name, described] = entry;
    const auto [begin, end] = offsets(entry);
    if (begin != position || end < begin || end > data.nbytes()) {
      refuse("got tensor {} at {}, expected it to begin at {} of {} bytes of data, and end in them",
             quote(name), shorten(described.at("data_offsets").dump()), position, data.nbytes());
    }
    position = end;
    if (wanted == nullptr || std::ranges::find(*wanted, name) != wanted->end()) {
      file.tensors.emplace_back(name, tensor_of(name, described,
                                                data.narrow(0, static_cast<int64_t>(begin),
                                                            static_cast<int64_t>(end - begin))));
    }
  }
  if (position != data.nbytes()) {
    refuse("got {} bytes of data, expected {}", data.nbytes(), position);
  }
  return file;
}

/// Tensor on `bytes`. @param deleter called when no tensor uses the bytes any more
torch::Tensor on(
    std::string_view bytes, const std::function<void(void*)>& deleter = [](void*) {}) {
  return torch::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())},
                          deleter, torch::kUInt8);
}

/// The header of `file`, with zeros for the checksum.
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
  const uint64_t header_bytes = header.size();
  size_t file_bytes = sizeof(header_bytes) + header.size();
  for (const auto& [name, tensor] : file.tensors) {
    file_bytes += tensor.nbytes();
  }
  NextFile next("snapshot", path, file_bytes);
  Hash hash;
  next.write({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)});
  next.write(header);
  hash.update(header);
  for (const auto& [name, tensor] : file.tensors) {
    const torch::Tensor host = tensor.detach().to(torch::kCPU).contiguous();
    next.write({static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
    hash.update(host.const_data_ptr(), host.nbytes());
  }
  next.overwrite(static_cast<off_t>(sizeof(header_bytes) + hash_position(header)), hash.hex());
  // A damaged file must not take the place of a good one.
  next.take_place(/*keep_old=*/is_whole(path));
}

TensorFile parse_tensor_file(const std::string& name, std::string_view bytes) {
  try {
    const Parts parts = split(bytes);
    check_hash(parts);
    return parse(parts.header, on(parts.data).clone(), /*wanted=*/nullptr);
  } catch (...) {
    throw Error(ExitCode::kSnapshotRefused, fmt::format("snapshot {}: {}", name, reason()));
  }
}

TensorFile map_tensor_file(const std::string& path, const std::vector<std::string>& names) {
  const auto file = std::make_shared<const MappedFile>(path);
  try {
    const Parts parts = split(file->bytes());
    return parse(parts.header, on(parts.data, [file](void*) {}), &names);
  } catch (...) {
    refuse("data file {}: {}", path, reason());
  }
}

}  // namespace ddp
