#include "common/snapshot.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "common/exit_codes.hpp"
#include "common/hash.hpp"
#include "common/stop_request.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
const std::string kFormat = "ddp-snapshot-1";
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

/// A file that is removed again unless it was renamed away.
struct TemporaryFile {
  explicit TemporaryFile(std::string name)
      : path(std::move(name)),
        fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (fd < 0) {
      fail_to_write(path);
    }
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

  TemporaryFile temporary(path + ".tmp." + std::to_string(getpid()));
  write_all(temporary.fd, reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes),
            temporary.path);
  write_all(temporary.fd, header.data(), header.size(), temporary.path);
  write_all(temporary.fd, data.data(), data.size(), temporary.path);
  if (fsync(temporary.fd) != 0) {
    fail_to_write(temporary.path);
  }
  // The old file gets its second name first, so that there is no moment without a snapshot at
  // `path`.
  const std::string previous = path + ".prev";
  const std::string link_name = previous + ".tmp." + std::to_string(getpid());
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

Snapshot::Snapshot(const Options& options, const LaunchEnvironment& environment,
                   const Dataset& dataset, torch::nn::Module& model, Optimizer& optimizer)
    : options_(options),
      environment_(environment),
      dataset_(dataset),
      model_(model),
      optimizer_(optimizer) {
  watch_for_stop_request();
  if (environment.rank != 0) {
    return;  // only rank 0 touches the file
  }
  const fs::path folder = fs::absolute(options.snapshot).parent_path();
  if (fs::is_directory(options.snapshot) || access(folder.c_str(), W_OK | X_OK) != 0) {
    throw UsageError("--snapshot: got " + options.snapshot +
                     ", expected a file in an existing, writable folder");
  }
}

std::map<std::string, std::string> Snapshot::settings() const {
  std::string layers;
  for (const int64_t width : dataset_.layers) {
    layers += layers.empty() ? "" : ",";
    layers += std::to_string(width);
  }
  // A rate that falls to zero at the last epoch makes runs of different length different runs.
  std::string schedule = resolve_lr_schedule(options_);
  if (schedule == "linear") {
    schedule += " over " + std::to_string(options_.total_epochs) + " epochs";
  }
  return {
      {"layers", layers},
      {"lr-schedule", schedule},
      {"dataset", dataset_.fingerprint},
      {"optimizer", options_.optimizer},
      {"lr", json(resolve_learning_rate(options_)).dump()},
      {"seed", std::to_string(options_.seed)},
      {"sampler", options_.sampler},
      {"global-batch", std::to_string(resolve_global_batch(options_, environment_.world_size))}};
}

NamedTensors Snapshot::model_tensors() const {
  NamedTensors all;
  for (const auto& item : model_.named_parameters()) {
    all.emplace_back(item.key(), item.value().detach());
  }
  for (const auto& item : model_.named_buffers()) {
    all.emplace_back(item.key(), item.value());
  }
  return all;
}

void Snapshot::save(int64_t epochs_done) {
  // The other ranks know by the same arithmetic when to give their parts, see leave_if().
  TORCH_CHECK(!optimizer_.is_sharded() || epochs_done % options_.save_every == 0,
              "Expected --shard-optimizer to save every ", options_.save_every, " epochs, got ",
              epochs_done);
  write(epochs_done);
}

void Snapshot::write(int64_t epochs_done) {
  TensorFile file{.metadata = settings(), .tensors = model_tensors()};
  for (const auto& [name, tensor] : optimizer_.state()) {
    file.tensors.emplace_back("optimizer." + name, tensor);
  }
  file.metadata["format"] = kFormat;
  file.metadata["epochs_done"] = std::to_string(epochs_done);
  write_tensor_file(options_.snapshot, file);
  saved_epochs_ = epochs_done;
}

void Snapshot::leave_if(bool asked, int64_t epochs_done) {
  const bool leaves = asked && epochs_done < options_.total_epochs;
  const bool saves = environment_.rank == 0;
  if (saves && leaves && saved_epochs_ != epochs_done) {
    write(epochs_done);
  } else if (!saves && optimizer_.is_sharded() &&
             (leaves || epochs_done % options_.save_every == 0)) {
    optimizer_.state();
  }
  if (!leaves) {
    return;
  }
  if (process_group_ != nullptr) {
    // Waits for rank 0: a launcher that sees one rank leave may end the others at once.
    destroy_process_group(*process_group_);
  }
  throw Error(ExitCode::kRunAgain,
              saves ? "stopped on request after epoch " + std::to_string(epochs_done - 1) +
                          " with snapshot " + options_.snapshot +
                          "; a restart by the launcher, or --resume auto, goes on from there"
                    : "");
}

Snapshot::Stored Snapshot::read(const std::string& path) const {
  const torch::NoGradGuard no_grad;
  const TensorFile file = read_tensor_file(path);
  for (const auto& [name, value] : settings()) {
    const auto found = file.metadata.find(name);
    const std::string stored = found == file.metadata.end() ? "nothing" : found->second;
    if (stored != value) {
      refuse(path, "belongs to another run: it has " + name + " " + stored + ", expected " + value);
    }
  }
  const NamedTensors model = model_tensors();
  NamedTensors targets = model;
  for (const auto& [name, tensor] : optimizer_.state_layout()) {
    targets.emplace_back("optimizer." + name, tensor);
  }
  if (file.tensors.size() != targets.size()) {
    refuse(path, "holds " + std::to_string(file.tensors.size()) + " tensors, expected " +
                     std::to_string(targets.size()));
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto& [name, target] = targets[i];
    const auto& [stored_name, stored] = file.tensors[i];
    if (stored_name != name || stored.sizes() != target.sizes() ||
        stored.scalar_type() != target.scalar_type()) {
      refuse(path, "holds " + stored_name + ", expected " + name + " of the model's shape");
    }
  }
  // Only now, when all of it is known to fit, is anything changed.
  for (size_t i = 0; i < model.size(); ++i) {
    torch::Tensor target = model[i].second;
    target.copy_(file.tensors[i].second);
  }
  return {std::stoll(file.metadata.at("epochs_done")),
          {file.tensors.begin() + static_cast<std::ptrdiff_t>(model.size()), file.tensors.end()}};
}

Snapshot::Stored Snapshot::load_newest() const {
  const bool wanted =
      options_.resume == "auto" || (options_.resume == "restart" && environment_.restart_count > 0);
  const std::string previous = options_.snapshot + ".prev";
  if (!wanted || (!fs::exists(options_.snapshot) && !fs::exists(previous))) {
    return {};
  }
  try {
    return read(options_.snapshot);
  } catch (const Error& newest) {
    if (!fs::exists(previous)) {
      throw;
    }
    Stored stored = read(previous);
    std::fprintf(stderr, "%s: warning: %s; going on from %s\n", options_.program.c_str(),
                 newest.what(), previous.c_str());
    return stored;
  }
}

int64_t Snapshot::load(ProcessGroup* process_group) {
  process_group_ = process_group;
  Stored stored;
  if (process_group == nullptr) {
    stored = load_newest();
    if (stored.epochs_done > 0) {
      optimizer_.load_state(stored.optimizer_state, nullptr);
    }
    return stored.epochs_done;
  }
  // Through the store, so that a refusal reaches every rank as the same error and none waits for a
  // collective.
  std::string outcome;
  if (process_group->rank() == 0) {
    try {
      stored = load_newest();
      outcome = "epoch " + std::to_string(stored.epochs_done);
    } catch (const Error& error) {
      process_group->share("snapshot", error.what());
      throw;
    }
  }
  outcome = process_group->share("snapshot", outcome);
  if (outcome.rfind("epoch ", 0) != 0) {
    throw Error(ExitCode::kSnapshotRefused, outcome);
  }
  const int64_t epochs_done = std::stoll(outcome.substr(6));
  if (epochs_done > 0) {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : model_tensors()) {
      const torch::Tensor on_device = tensor.to(process_group->device());
      process_group->broadcast(on_device);
      torch::Tensor target = tensor;
      target.copy_(on_device);
    }
    optimizer_.load_state(stored.optimizer_state, process_group);
  }
  return epochs_done;
}

}  // namespace ddp
