#include "bench/catalog.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"

namespace ddp::bench {
namespace {

constexpr double kTimedSeconds = 0.12;
constexpr double kWarmupSeconds = 0.05;
constexpr std::int64_t kLeastTimedSteps = 20;
constexpr std::int64_t kMostTimedSteps = 2000;
constexpr std::int64_t kLeastWarmupSteps = 20;  // the stages' own warm-up

/// Rough time of a step on a CPU, for the number of timed steps.
double expected_step_seconds(const Model& model) {
  constexpr double kOverheadSeconds = 40e-6;
  constexpr double kFlopPerSecond = 100e9;
  return kOverheadSeconds +
         model.flop_per_sample() * static_cast<double>(model.batch) / kFlopPerSecond;
}

}  // namespace

std::int64_t Model::parameters() const {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < layers.size(); ++i) {
    count += (layers[i - 1] + 1) * layers[i];
  }
  return count;
}

double Model::flop_per_sample() const {
  return 6.0 * static_cast<double>(parameters());  // a product forward and two backward
}

std::int64_t Model::timed_steps() const {
  return std::clamp(std::llround(kTimedSeconds / expected_step_seconds(*this)),
                    static_cast<long long>(kLeastTimedSteps),
                    static_cast<long long>(kMostTimedSteps));
}

std::int64_t Model::warmup_steps() const {
  return kLeastWarmupSteps + std::llround(kWarmupSeconds / expected_step_seconds(*this));
}

const Model& find_model(const std::string& name) {
  static const std::vector<Model> known = {
      {"T", {20, 1}, 32},
      {"S", {64, 128, 128, 10}, 32},
      {"M", {784, 512, 512, 10}, 64},
      {"L", {1024, 1024, 1024, 1024}, 64},
  };
  const auto found = std::ranges::find(known, name, &Model::name);
  if (found == known.end()) {
    refuse("--models: got {}, expected T, S, M or L", quote(name));
  }
  return *found;
}

const std::vector<Program>& known_programs() {
  static const std::vector<Program> programs = {
      {kBaseline, "01_single_gpu", "main", Start::kAlone},
      {"02_data_parallel", "02_data_parallel", "main", Start::kReplicas},
      {"02_data_parallel_mirrored", "02_data_parallel", "mirrored", Start::kReplicas},
      {"03_ddp_spawn", "03_ddp_spawn", "main", Start::kSpawn},
      {"03_ddp_spawn_by_hand", "03_ddp_spawn", "by_hand", Start::kSpawn},
      {kFused, "03_ddp_spawn", "fused", Start::kSpawn},
      {"04_ddp_launcher", "04_ddp_launcher", "main", Start::kLauncher},
      {"04_ddp_launcher_accelerated", "04_ddp_launcher", "accelerated", Start::kLauncher},
      {"05_multinode", "05_multinode", "main", Start::kLauncher},
  };
  return programs;
}

const Program& find_program(const std::string& name) {
  const auto found = std::ranges::find(known_programs(), name, &Program::name);
  if (found == known_programs().end()) {
    throw std::out_of_range(name);
  }
  return *found;
}

const std::vector<Peer>& known_peers() {
  static const std::vector<Peer> peers = {
      {.name = "pytorch", .variant = "tuned"},
      {.name = "pytorch", .variant = "tuned", .start = Start::kAlone},
      {.name = "pytorch", .variant = "compiled", .slow_start = true},
      {.name = "pytorch", .variant = "compiled", .start = Start::kAlone, .slow_start = true},
      {.name = "accelerate", .variant = "ddp"},
      {.name = "tensorflow", .variant = "mirrored", .start = Start::kReplicas, .on_gpus = false},
      {.name = "jax", .variant = "jit", .start = Start::kAlone, .on_gpus = false},
      {.name = "jax", .variant = "jit", .start = Start::kReplicas, .on_gpus = false},
      {.name = kBuiltPeer, .variant = "reducer"},
      {.name = kBuiltPeer, .variant = "reducer", .backend = "auto"},
  };
  return peers;
}

}  // namespace ddp::bench
