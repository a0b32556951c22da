#include "common/training/snapshot.hpp"

#include <filesystem>
#include <iostream>

#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/base/signals.hpp"
#include "common/data/tensor_file.hpp"
#include "common/parallel/default_group.hpp"
#include "common/training/optimizer.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

const std::string kFormat = "ddp-snapshot-2";
const std::string kOptimizer = "optimizer.";

[[noreturn]] void refuse_snapshot(const std::string& path, const std::string& reason) {
  throw Error(ExitCode::kSnapshotRefused, fmt::format("snapshot {} {}", path, reason));
}

/// The file is whole, but from another run: then PATH.prev is not taken either.
struct OtherRun : Error {
  using Error::Error;
};

/// Parameters and buffers by their names.
NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) {
    all.emplace_back(item.key(), item.value().detach());
  }
  for (const auto& item : module.named_buffers()) {
    all.emplace_back(item.key(), item.value());
  }
  return all;
}

/// "--global-batch" -> "global-batch"
std::string key_of(const Setting& setting) {
  return setting.name.substr(2);
}

/// --snapshot of a run, whose options must not differ where they decide the weights.
class SnapshotFile {
 public:
  explicit SnapshotFile(const Options& options) : path_(options.snapshot) {
    TORCH_CHECK(!options.settings.empty(), "Options: got no settings, expected resolve_options()");
    std::ranges::copy_if(options.settings, std::back_inserter(identity_), &Setting::result);
  }

  void write(int64_t epochs_done, const torch::nn::Module& module,
             const NamedTensors& optimizer_state) const {
    TensorFile file;
    file.tensors = tensors_of(module);
    for (const auto& [name, tensor] : optimizer_state) {
      file.tensors.emplace_back(kOptimizer + name, tensor);
    }
    for (const Setting& setting : identity_) {
      file.metadata[key_of(setting)] = setting.text;
    }
    file.metadata["format"] = kFormat;
    file.metadata["epochs_done"] = std::to_string(epochs_done);
    write_tensor_file(path_, file);
  }

  /// Reads the file or, if it is damaged, PATH.prev.
  /// @return the path and the bytes of a file that check() accepts; empty if there is none
  std::pair<std::string, std::string> read_newest() const {
    const std::string previous = path_ + ".prev";
    if (!fs::exists(path_) && !fs::exists(previous)) {
      return {};
    }
    try {
      return read(path_);
    } catch (const OtherRun&) {
      throw;
    } catch (const Error& newest) {
      if (!fs::exists(previous)) {
        throw;
      }
      try {
        auto older = read(previous);
        std::cerr << fmt::format("{}: warning: {}; going on from {}\n", program_name(),
                                 printable(newest.what()), printable(previous));
        return older;
      } catch (const Error& older) {
        throw Error(newest.code(), fmt::format("{}; {}", newest.what(), older.what()));
      }
    }
  }

  /// @return epochs done @throws Error (3) if the file is damaged, OtherRun if its settings differ
  int64_t check(const std::string& path, const TensorFile& file) const {
    const auto text_of = [&](const std::string& name) {
      const auto found = file.metadata.find(name);
      return found == file.metadata.end() ? std::string() : found->second;
    };
    if (text_of("format") != kFormat) {
      refuse_snapshot(path,
                      fmt::format("has format {}, expected {}", quote(text_of("format")), kFormat));
    }
    for (const Setting& setting : identity_) {
      const std::string key = key_of(setting);
      // A file of an older version, which had not the option.
      const bool is_usual = !file.metadata.contains(key) && setting.is_default;
      if (text_of(key) != setting.text && !is_usual) {
        throw OtherRun(ExitCode::kSnapshotRefused,
                       fmt::format("snapshot {} belongs to another run: it has {} {}, expected {}",
                                   path, key, quote(text_of(key)), setting.text));
      }
    }
    try {
      return parse_integer<int64_t>("epochs_done", text_of("epochs_done"), 1);
    } catch (const UsageError& error) {
      refuse_snapshot(path, fmt::format("does not say how far it got: {}", error.what()));
    }
  }

 private:
  std::pair<std::string, std::string> read(const std::string& path) const {
    try {
      std::string bytes(MappedFile(path).bytes());
      check(path, parse_tensor_file(path, bytes));
      return std::pair(path, std::move(bytes));
    } catch (const UsageError& error) {
      refuse_snapshot(path, error.what());
    }
  }

  std::string path_;
  std::vector<Setting> identity_;
};

/// Copies all tensors into the model and the optimizer, after checking that they fit.
void apply(const std::string& path, const TensorFile& file, const torch::nn::Module& module,
           torch::optim::Optimizer* optimizer) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> stored(file.tensors.begin(), file.tensors.end());
  const NamedTensors targets = tensors_of(module);
  for (const auto& [name, target] : targets) {
    const auto found = stored.find(name);
    if (found == stored.end() || found->second.sizes() != target.sizes() ||
        found->second.scalar_type() != target.scalar_type()) {
      refuse_snapshot(path, fmt::format("holds no {} of the model's shape and type", name));
    }
  }
  for (const auto& [name, target] : targets) {
    target.copy_(stored.at(name));
    stored.erase(name);
  }
  NamedTensors state;
  for (const auto& [name, tensor] : stored) {
    if (optimizer == nullptr || !name.starts_with(kOptimizer)) {
      refuse_snapshot(path, fmt::format("holds {}, which the model has not", quote(name)));
    }
    state.emplace_back(name.substr(kOptimizer.size()), tensor);
  }
  if (optimizer != nullptr) {
    try {
      load_named_state(*optimizer, state);
    } catch (const c10::Error& error) {
      refuse_snapshot(path, error.what_without_backtrace());
    }
  }
}

/// Copies rank 0's text, of any size, to all ranks.
std::string broadcast_text(const ProcessGroup& group, std::string text, const CallSite& site) {
  const auto size =
      std::stoll(group.board().from_rank_0("snapshot size", std::to_string(text.size())));
  text.resize(static_cast<size_t>(size));
  const torch::Tensor host = torch::from_blob(text.data(), {size}, torch::kUInt8);
  const torch::Tensor bytes = host.to(group.device());
  group.broadcast(bytes, /*root=*/0, site);
  host.copy_(bytes);
  return text;
}

int64_t load(const Options& options, const torch::nn::Module& module,
             torch::optim::Optimizer* optimizer, const CallSite& site) {
  watch_for_stop_request();
  const ProcessGroup& group = world();
  const int restarts = group.launch().restart_count;
  const bool wanted = options.resume == "auto" || (options.resume == "restart" && restarts > 0);
  if (!wanted) {
    return 0;
  }
  const SnapshotFile snapshot(options);
  // Through the store, so that every rank gets rank 0's refusal as the same error.
  std::pair<std::string, std::string> newest;
  std::string refusal;
  if (group.rank() == 0) {
    try {
      newest = snapshot.read_newest();
    } catch (const std::exception& error) {  // errors of the file system, too
      refusal = error.what();
    }
  }
  refusal = group.board().from_rank_0("snapshot refusal", refusal);
  if (!refusal.empty()) {
    group.board().wait_for_readers("snapshot refusal");
    throw Error(ExitCode::kSnapshotRefused, refusal);
  }
  const std::string path = group.board().from_rank_0("snapshot path", newest.first);
  if (path.empty()) {
    return 0;
  }
  const std::string bytes = broadcast_text(group, newest.second, site.in("load_snapshot"));
  const TensorFile file = parse_tensor_file(path, bytes);
  const int64_t epochs_done = snapshot.check(path, file);
  apply(path, file, module, optimizer);
  return epochs_done;
}

}  // namespace

int64_t load_snapshot(const Options& options, torch::nn::Module& module,
                      torch::optim::Optimizer& optimizer, const CallSite& site) {
  return load(options, module, &optimizer, site);
}

int64_t load_snapshot(const Options& options, torch::nn::Module& module, const CallSite& site) {
  return load(options, module, nullptr, site);
}

void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module,
                   torch::optim::Optimizer& optimizer) {
  SnapshotFile(options).write(epochs_done, module, named_state(optimizer));
}

void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module) {
  SnapshotFile(options).write(epochs_done, module, {});
}

}  // namespace ddp
