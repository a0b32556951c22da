#include "common/data/tensor_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/exit_codes.hpp"
#include "common/base/hash.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
const std::string kNoHash(32, '0');

const std::map<std::string, torch::ScalarType>& dtypes() {
  static const std::map<std::string, torch::ScalarType> table = {
      {"F64", torch::kFloat64},   {"F32", torch::kFloat32}, {"F16", torch::kFloat16},
      {"BF16", torch::kBFloat16}, {"I64", torch::kInt64},   {"I32", torch::kInt32},
      {"U8", torch::kUInt8},      {"BOOL", torch::kBool}};
  return table;
}

std::string dtype_name(torch::ScalarType type) {
  for (const auto& [name, candidate] : dtypes()) {
    if (candidate == type) {
      return name;
    }
  }
  TORCH_CHECK(false, "Expected a dtype that safetensors has, got ", type);
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ExitCode::kSnapshotRefused, "snapshot " + path + " " + reason);
}

[[noreturn]] void fail_to_write(const std::string& path) {
  throw Error(ExitCode::kTrainingFailed,
              "snapshot " + path + " cannot be written: " + std::strerror(errno));
}

/// The checksum covers the file with the checksum's own digits as zeros.
std::string file_hash(const std::string& header, const std::string& data) {
  return Hash().update(header).update(data).hex();
}

void write_all(int fd, const char* bytes, size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t written = write(fd, bytes, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      fail_to_write(path);
    }
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

const std::string kPrevious = ".prev";
const std::string kTemporary = ".tmp.";
constexpr size_t kSuffixDigits = 16;

/// "PATH.tmp." and random digits: a process that was killed may have left one, and process numbers
/// repeat, above all in containers.
std::string temporary_name(const std::string& path) {
  std::random_device random;
  char suffix[kSuffixDigits + 1];
  std::snprintf(suffix, sizeof(suffix), "%08x%08x", random(), random());
  return path + kTemporary + suffix;
}

bool is_temporary(const std::string& name, const std::string& base) {
  const size_t digits = base.size() + kTemporary.size();
  return name.size() == digits + kSuffixDigits && name.rfind(base + kTemporary, 0) == 0 &&
         name.find_first_not_of("0123456789abcdef", digits) == std::string::npos;
}

/// Removes what writers of `path` that were killed have left. Living ones hold a lock.
void remove_leftovers(const fs::path& path) {
  std::error_code error;
  const std::string base = path.filename().string();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_temporary(name, base) && !is_temporary(name, base + kPrevious)) {
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
struct TemporaryFile {
  explicit TemporaryFile(std::string name)
      : path(std::move(name)),
        fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (fd < 0) {
      fail_to_write(path);
    }
    flock(fd, LOCK_EX | LOCK_NB);
  }
  ~TemporaryFile() {
    close(fd);
    unlink(path.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  std::string path;
  int fd;
};

void sync_folder(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  if (!in) {
    refuse(path, "cannot be read");
  }
  return bytes;
}

/// One tensor of the header, checked against what is there. @param position where its data must
/// begin
torch::Tensor read_tensor(const std::string& path, const std::string& name, const json& entry,
                          const std::string& data, size_t& position) {
  const auto type = dtypes().find(entry.at("dtype").get<std::string>());
  if (type == dtypes().end()) {
    refuse(path, "has tensor " + name + " of unknown dtype");
  }
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
  size_t bytes = c10::elementSize(type->second);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(extent), &bytes)) {
      refuse(path, "has tensor " + name + " of impossible shape");
    }
  }
  if (offsets.size() != 2 || offsets[0] != position || offsets[1] < offsets[0] ||
      offsets[1] - offsets[0] != bytes || offsets[1] > data.size()) {
    refuse(path, "has tensor " + name + " outside of its data");
  }
  torch::Tensor tensor = torch::empty(shape, type->second);
  if (bytes > 0) {
    std::memcpy(tensor.mutable_data_ptr(), data.data() + position, bytes);
  }
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
      file.tensors.emplace_back(name, read_tensor(path, name, json(entry), data, position));
    }
  }
  if (position != data.size()) {
    refuse(path, "holds " + std::to_string(data.size()) + " bytes of data, expected " +
                     std::to_string(position));
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
    const size_t begin = data.size();
    data.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
    root[name] = {{"dtype", dtype_name(host.scalar_type())},
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
  write_all(temporary.fd, reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes),
            temporary.path);
  write_all(temporary.fd, header.data(), header.size(), temporary.path);
  write_all(temporary.fd, data.data(), data.size(), temporary.path);
  if (fsync(temporary.fd) != 0) {
    fail_to_write(temporary.path);
  }
  // The old file gets its second name first, so that there is no moment without a snapshot at
  // `path`.
  const std::string previous = path + kPrevious;
  const std::string link_name = temporary_name(previous);
  if (link(path.c_str(), link_name.c_str()) == 0) {
    if (rename(link_name.c_str(), previous.c_str()) != 0) {
      unlink(link_name.c_str());
    }
    unlink(link_name.c_str());  // still there if both names were the same file already
  }
  if (rename(temporary.path.c_str(), path.c_str()) != 0) {
    fail_to_write(path);
  }
  sync_folder(path);
}

TensorFile read_tensor_file(const std::string& path) {
  const std::string bytes = read_file(path);
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    refuse(path, "holds " + std::to_string(bytes.size()) + " bytes, expected a safetensors file");
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes)) {
    refuse(path, "is no safetensors file: its header claims " + std::to_string(header_bytes) +
                     " of " + std::to_string(bytes.size()) + " bytes");
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
  } catch (const json::exception& error) {
    refuse(path, std::string("has a malformed header: ") + error.what());
  }
}

}  // namespace ddp
