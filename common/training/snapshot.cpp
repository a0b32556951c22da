#include "common/training/snapshot.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <iostream>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/data/tensor_file.hpp"
#include "common/launch/stop_request.hpp"
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

/// The options that decide the final weights of a run, by their names in the file.
using Identity = std::map<std::string, std::string>;

Identity identity_of(const Options& options) {
  Identity identity;
  for (const Setting& setting : settings_of(options, world().world_size())) {
    if (setting.result) {
      identity[setting.name.substr(2)] = setting.text;
    }
  }
  return identity;
}

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

/// @return epochs done @throws Error (3) if the file is damaged, OtherRun if its settings differ
int64_t check(const Identity& identity, const std::string& path, const TensorFile& file) {
  const auto text_of = [&](const std::string& name) {
    const auto found = file.metadata.find(name);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (text_of("format") != kFormat) {
    refuse_snapshot(path,
                    fmt::format("has format {}, expected {}", quote(text_of("format")), kFormat));
  }
  for (const auto& [name, value] : identity) {
    if (text_of(name) != value) {
      throw OtherRun(ExitCode::kSnapshotRefused,
                     fmt::format("snapshot {} belongs to another run: it has {} {}, expected {}",
                                 path, name, quote(text_of(name)), value));
    }
  }
  try {
    return parse_integer<int64_t>("epochs_done", text_of("epochs_done"), 1);
  } catch (const UsageError& error) {
    refuse_snapshot(path, fmt::format("does not say how far it got: {}", error.what()));
  }
}

/// Reads --snapshot or, if it is damaged, PATH.prev.
/// @return the path and the bytes of a file that check() accepts
std::pair<std::string, std::string> read_newest(const Options& options) {
  const auto read = [identity = identity_of(options)](const std::string& path) {
    try {
      std::string bytes(MappedFile(path).bytes());
      check(identity, path, parse_tensor_file(path, bytes));
      return std::pair(path, std::move(bytes));
    } catch (const UsageError& error) {
      refuse_snapshot(path, error.what());
    }
  };
  const std::string previous = options.snapshot + ".prev";
  try {
    return read(options.snapshot);
  } catch (const OtherRun&) {
    throw;
  } catch (const Error& newest) {
    if (!fs::exists(previous)) {
      throw;
    }
    try {
      auto older = read(previous);
      std::cerr << fmt::format("{}: warning: {}; going on from {}\n", options.program,
                               printable(newest.what()), printable(previous));
      return older;
    } catch (const Error& older) {
      throw Error(newest.code(), fmt::format("{}; {}", newest.what(), older.what()));
    }
  }
}

/// Copies all tensors into the model and the optimizer, after checking that they fit.
int64_t apply(const Identity& identity, const std::string& path, const std::string& bytes,
              const torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  const torch::NoGradGuard no_grad;
  const TensorFile file = parse_tensor_file(path, bytes);
  const int64_t epochs_done = check(identity, path, file);
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
  return epochs_done;
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
  // Through the store, so that every rank gets rank 0's refusal as the same error.
  std::pair<std::string, std::string> newest;
  std::string refusal;
  if (group.rank() == 0) {
    try {
      if (fs::exists(options.snapshot) || fs::exists(options.snapshot + ".prev")) {
        newest = read_newest(options);
      }
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
  return apply(identity_of(options), path,
               broadcast_text(group, newest.second, site.in("load_snapshot")), module, optimizer);
}

void save(const Options& options, int64_t epochs_done, const torch::nn::Module& module,
          const NamedTensors& state) {
  TensorFile file{.metadata = identity_of(options), .tensors = tensors_of(module)};
  for (const auto& [name, tensor] : state) {
    file.tensors.emplace_back(kOptimizer + name, tensor);
  }
  file.metadata["format"] = kFormat;
  file.metadata["epochs_done"] = std::to_string(epochs_done);
  write_tensor_file(options.snapshot, file);
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
  save(options, epochs_done, module, named_state(optimizer));
}

void save_snapshot(const Options& options, int64_t epochs_done, const torch::nn::Module& module) {
  save(options, epochs_done, module, {});
}

bool stop_requested(const CallSite& site) {
  const bool here = stop_request() != 0;
  const ProcessGroup& group = world();
  const torch::Tensor own =
      torch::full({1}, here ? 1.0 : 0.0, torch::TensorOptions(group.device()));
  return group.all_gather(own, site.in("stop_requested")).any().item<bool>();
}

}  // namespace ddp
