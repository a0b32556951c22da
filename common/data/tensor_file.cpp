#include "common/data/tensor_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"
#include "common/base/parse.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
const std::string kNoHash(32, '0');

struct Dtype {
  const char* name;  // in safetensors
  torch::ScalarType type;
};
constexpr Dtype kDtypes[] = {{"F64", torch::kFloat64}, {"F32", torch::kFloat32},
                             {"F16", torch::kFloat16}, {"BF16", torch::kBFloat16},
                             {"I64", torch::kInt64},   {"I32", torch::kInt32},
                             {"U8", torch::kUInt8},    {"BOOL", torch::kBool}};

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ExitCode::kSnapshotRefused, fmt::format("snapshot {} {}", path, reason));
}

[[noreturn]] void fail_to_write(const std::string& path) {
  throw Error(ExitCode::kTrainingFailed,
              fmt::format("snapshot {} cannot be written: {}", path, std::strerror(errno)));
}

/// The checksum covers the file with the checksum's own digits as zeros.
std::string file_hash(const std::string& header, const std::string& data) {
  return Hash().update(header).update(data).hex();
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

/// "PATH.tmp." and random digits: a process that was killed may have left one, and process numbers
/// repeat, above all in containers.
std::string temporary_name(const std::string& path) {
  std::random_device random;
  return fmt::format("{}.tmp.{:08x}{:08x}", path, random(), random());
}

/// Whether it is a temporary_name() of the file `base` or of the one kept before it.
bool is_temporary(const fs::path& name, const std::string& base) {
  const fs::path stem = name.stem();
  const std::string digits = name.extension();  // with a dot before them
  return (stem == base + ".tmp" || stem == base + ".prev.tmp") && digits.size() == 17 &&
         digits.find_first_not_of("0123456789abcdef", 1) == std::string::npos;
}

/// Removes what writers of `path` that were killed have left. Living ones hold a lock.
void remove_leftovers(const fs::path& path) {
  std::error_code error;
  for (fs::directory_iterator entry(folder_of(path), error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_temporary(entry->path().filename(), path.filename())) {
      continue;
    }
    const int fd = open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
      if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        unlink(entry->path().c_str());
      }
      close(fd);
    }
  }
}

/// A file that is removed again unless it was renamed away. Locked meanwhile.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path(name),
        fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      fail_to_write(path);
    }
    flock(fd_, LOCK_EX | LOCK_NB);
  }
  ~TemporaryFile() {
    close(fd_);
    unlink(path.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written > 0) {
        bytes.remove_prefix(static_cast<size_t>(written));
      } else if (written == 0 || errno != EINTR) {
        fail_to_write(path);
      }
    }
  }
  void sync() {
    if (fsync(fd_) != 0) {
      fail_to_write(path);
    }
  }

  const std::string path;

 private:
  int fd_;
};

void sync_folder(const fs::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
}

/// One tensor of the header, checked against what is there.
/// @param position where its data must begin; then where it ends
torch::Tensor read_tensor(const std::string& path, const std::string& name,
                          const ordered_json& entry, const std::string& data, size_t& position) {
  const auto dtype = std::ranges::find(kDtypes, entry.at("dtype").get<std::string>(), &Dtype::name);
  if (dtype == std::end(kDtypes)) {
    refuse(path, "has tensor " + quote(name) + " of unknown dtype");
  }
  if (!std::ranges::all_of(entry.at("shape"), &ordered_json::is_number_unsigned)) {
    refuse(path, "has tensor " + quote(name) + " of impossible shape");  // 1.5 would be read as 1
  }
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  size_t bytes = c10::elementSize(dtype->type);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes)) {
      refuse(path, "has tensor " + quote(name) + " of impossible shape");
    }
  }
  if (bytes > data.size() - position ||
      entry.at("data_offsets") != ordered_json{position, position + bytes}) {
    refuse(path, "has tensor " + quote(name) + " outside of its data");
  }
  torch::Tensor tensor = torch::empty(shape, dtype->type);
  std::copy_n(data.data() + position, bytes, static_cast<char*>(tensor.mutable_data_ptr()));
  position += bytes;
  return tensor;
}

TensorFile parse(const std::string& path, const std::string& header, const std::string& data) {
  TensorFile file;
  const ordered_json root = ordered_json::parse(header);
  size_t position = 0;
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
    } else {
      file.tensors.emplace_back(name, read_tensor(path, name, entry, data, position));
    }
  }
  if (position != data.size()) {
    refuse(path, fmt::format("holds {} bytes of data, expected {}", data.size(), position));
  }
  return file;
}

}  // namespace

void write_tensor_file(const std::string& path, const TensorFile& file) {
  std::string data;
  ordered_json root;
  root["__metadata__"] = file.metadata;
  root["__metadata__"]["xxh3_128"] = kNoHash;
  for (const auto& [name, tensor] : file.tensors) {
    const torch::Tensor host = tensor.detach().to(torch::kCPU).contiguous();
    const auto dtype = std::ranges::find(kDtypes, host.scalar_type(), &Dtype::type);
    TORCH_CHECK(dtype != std::end(kDtypes), "Expected a dtype that safetensors has, got ",
                host.scalar_type());
    const size_t begin = data.size();
    data.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
    root[name] = {{"dtype", dtype->name},
                  {"shape", host.sizes().vec()},
                  {"data_offsets", {begin, data.size()}}};
  }
  std::string header = root.dump();
  header.append((8 - header.size() % 8) % 8, ' ');  // so that the data is aligned
  const std::string hash = file_hash(header, data);
  header.replace(header.find(kNoHash), kNoHash.size(), hash);
  const uint64_t header_bytes = header.size();  // little endian, as every machine LibTorch runs on

  remove_leftovers(path);
  TemporaryFile temporary(temporary_name(path));
  temporary.write({reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes)});
  temporary.write(header);
  temporary.write(data);
  temporary.sync();
  // The old file gets its second name first, so that there is always a snapshot at `path`.
  const std::string previous = path + ".prev";
  const std::string link_name = temporary_name(previous);
  if (link(path.c_str(), link_name.c_str()) == 0) {
    rename(link_name.c_str(), previous.c_str());
    unlink(link_name.c_str());  // still there if it failed, or both were the same file already
  }
  if (rename(temporary.path.c_str(), path.c_str()) != 0) {
    fail_to_write(path);
  }
  sync_folder(folder_of(path));
}

TensorFile read_tensor_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  if (!in) {
    refuse(path, "cannot be read");
  }
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    refuse(path, fmt::format("holds {} bytes, expected a safetensors file", bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes)) {
    refuse(path, fmt::format("is no safetensors file: its header claims {} of {} bytes",
                             header_bytes, bytes.size()));
  }
  std::string header = bytes.substr(sizeof(header_bytes), header_bytes);
  const std::string data = bytes.substr(sizeof(header_bytes) + header_bytes);
  const std::string key = "\"xxh3_128\":\"";
  const size_t found = header.find(key);
  if (found == std::string::npos || found + key.size() + kNoHash.size() > header.size()) {
    refuse(path, "has no checksum, expected a file that this suite wrote");
  }
  const std::string stored = header.substr(found + key.size(), kNoHash.size());
  header.replace(found + key.size(), kNoHash.size(), kNoHash);
  if (file_hash(header, data) != stored) {
    refuse(path, "is damaged: its checksum does not match");
  }
  try {
    return parse(path, header, data);
  } catch (const nlohmann::json::exception& error) {
    refuse(path, std::string("has a malformed header: ") + error.what());
  }
}

}  // namespace ddp
