#include "common/training/snapshot.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
#include "common/parallel/signs_of_life.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFormat = "ddp-snapshot-1";
const std::string kSaved = "saved";

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ExitCode::kSnapshotRefused, "snapshot " + path + " " + reason);
}

/// A whole file, but not this run's: no reason to take the one before.
class OtherRun : public Error {
 public:
  OtherRun(const std::string& path, const std::string& reason)
      : Error(ExitCode::kSnapshotRefused,
              "snapshot " + path + " belongs to another run: it has " + reason) {}
};

std::string sign_key(const std::string& keys) {
  return keys + "/sign of life";
}

std::string load_key(const std::string& keys) {
  return keys + "/loaded";
}

std::string save_key(const std::string& keys, int64_t epochs_done) {
  return fmt::format("{}/saved {}", keys, epochs_done);
}

int64_t epochs_done_in(const std::string& path, const std::string& text) {
  try {
    return parse_integer<int64_t>("epochs_done", text, 1);
  } catch (const UsageError& error) {
    refuse(path, std::string("does not say how far it got: ") + error.what());
  }
}

bool is_resume_wanted(const Options& options, const LaunchEnvironment& environment) {
  return options.resume == "auto" || (options.resume == "restart" && environment.restart_count > 0);
}

}  // namespace

std::optional<int64_t> stored_global_batch(const Options& options,
                                           const LaunchEnvironment& environment) {
  for (const char* const suffix : {"", ".prev"}) {
    const std::string path = options.snapshot + suffix;
    try {
      if (is_resume_wanted(options, environment) && fs::exists(path)) {
        return parse_integer<int64_t>("global-batch",
                                      read_tensor_file_metadata(path).at("global-batch"), 1);
      }
    } catch (const std::exception&) {
      continue;  // Snapshot::load() says what is wrong with it
    }
  }
  return std::nullopt;
}

Snapshot::Snapshot(const Options& options, const LaunchEnvironment& environment,
                   const Dataset& dataset, torch::nn::Module& model, Optimizer& optimizer)
    : options_(options),
      environment_(environment),
      dataset_(dataset),
      model_(model),
      optimizer_(optimizer) {}

std::map<std::string, std::string> Snapshot::settings() const {
  // A rate that falls to zero at the last epoch makes runs of different length different runs.
  std::string schedule = resolve_lr_schedule(options_);
  if (schedule == "linear") {
    schedule += " over " + std::to_string(options_.total_epochs) + " epochs";
  }
  return {
      {"layers", fmt::format("{}", fmt::join(dataset_.layers, ","))},
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

void Snapshot::save(int64_t epochs_done, const ProcessGroup* process_group) {
  try {
    const SignsOfLife signs(process_group, save_key(keys_, epochs_done), sign_key(keys_));
    write(epochs_done);
  } catch (const std::exception&) {
    if (process_group != nullptr) {
      part_after_failure(*process_group, save_key(keys_, epochs_done));
    }
    throw;
  }
  saved_epochs_ = epochs_done;
}

void Snapshot::finish_save(int64_t epochs_done, const ProcessGroup& process_group) {
  const std::string key = save_key(keys_, epochs_done);
  if (process_group.rank() == 0) {
    c10d::Store& store = *process_group.store();
    if (!last_key_.empty()) {
      store.deleteKey(last_key_);  // all have read it: an epoch lies between
    }
    last_key_ = key;
    store.set(key, kSaved);
    return;
  }
  optimizer_.state();
  const std::string outcome =
      wait_for_rank_0(process_group, key, sign_key(keys_), "writes the snapshot");
  if (outcome != kSaved) {
    part_after_failure(process_group, key);
    throw Error(ExitCode::kTrainingFailed, "");  // rank 0 says why
  }
}

void Snapshot::write(int64_t epochs_done) const {
  TensorFile file{.metadata = settings(), .tensors = model_tensors()};
  for (const auto& [name, tensor] : optimizer_.state()) {
    file.tensors.emplace_back("optimizer." + name, tensor);
  }
  file.metadata["format"] = kFormat;
  file.metadata["epochs_done"] = std::to_string(epochs_done);
  write_tensor_file(options_.snapshot, file);
}

Snapshot::Stored Snapshot::read(const std::string& path) const {
  const torch::NoGradGuard no_grad;
  TensorFile file = read_tensor_file(path);
  std::map<std::string, std::string>& stored_text = file.metadata;  // empty for what is not there
  if (stored_text["format"] != kFormat) {
    refuse(path, fmt::format("has format {}, expected {}", quote(stored_text["format"]), kFormat));
  }
  for (const auto& [name, value] : settings()) {
    const std::string& stored = stored_text[name];
    if (stored != value) {
      throw OtherRun(path, fmt::format("{} {}, expected {}", name,
                                       stored.empty() ? "nothing" : stored, value));
    }
  }
  const int64_t epochs_done = epochs_done_in(path, stored_text["epochs_done"]);
  const NamedTensors model = model_tensors();
  NamedTensors targets = model;
  for (const auto& [name, tensor] : optimizer_.state_layout()) {
    targets.emplace_back("optimizer." + name, tensor);
  }
  if (file.tensors.size() != targets.size()) {
    refuse(path, fmt::format("holds {} tensors, expected {}", file.tensors.size(), targets.size()));
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto& [name, target] = targets[i];
    const auto& [stored_name, stored] = file.tensors[i];
    if (stored_name != name || stored.sizes() != target.sizes() ||
        stored.scalar_type() != target.scalar_type()) {
      refuse(path, fmt::format("holds {}, expected {} of the model's shape", stored_name, name));
    }
  }
  // Only now, when all of it is known to fit, is anything changed.
  for (size_t i = 0; i < model.size(); ++i) {
    torch::Tensor target = model[i].second;
    target.copy_(file.tensors[i].second);
  }
  return {epochs_done,
          {file.tensors.begin() + static_cast<std::ptrdiff_t>(model.size()), file.tensors.end()}};
}

Snapshot::Stored Snapshot::load_newest() const {
  const std::string previous = options_.snapshot + ".prev";
  if (!is_resume_wanted(options_, environment_) ||
      (!fs::exists(options_.snapshot) && !fs::exists(previous))) {
    return {};
  }
  try {
    return read(options_.snapshot);
  } catch (const OtherRun&) {
    throw;
  } catch (const Error& newest) {
    if (!fs::exists(previous)) {
      throw;
    }
    Stored stored;
    try {
      stored = read(previous);
    } catch (const Error& older) {
      throw Error(newest.code(), std::string(newest.what()) + "; " + older.what());
    }
    std::cerr << fmt::format("{}: warning: {}; going on from {}\n", options_.program, newest.what(),
                             previous);
    return stored;
  }
}

int64_t Snapshot::load(ProcessGroup* process_group) {
  Stored stored;
  if (process_group == nullptr) {
    stored = load_newest();
    if (stored.epochs_done > 0) {
      optimizer_.load_state(stored.optimizer_state, nullptr);
    }
    return stored.epochs_done;
  }
  keys_ = process_group->exchange_key("snapshot");
  // Through the store: a refusal reaches every rank as the same error, and none hangs waiting.
  std::string outcome;
  if (process_group->rank() == 0) {
    try {
      const SignsOfLife signs(process_group, load_key(keys_), sign_key(keys_));
      stored = load_newest();
      outcome = "epoch " + std::to_string(stored.epochs_done);
    } catch (const std::exception& error) {
      outcome = error.what();
    }
    process_group->store()->set(load_key(keys_), outcome);
  } else {
    outcome =
        wait_for_rank_0(*process_group, load_key(keys_), sign_key(keys_), "reads the snapshot");
  }
  if (outcome.rfind("epoch ", 0) != 0) {
    destroy_process_group(*process_group);  // rank 0 stays until the others have the answer
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
