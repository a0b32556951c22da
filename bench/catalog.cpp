#include "bench/catalog.hpp"

#include <algorithm>
#include <cmath>

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

const std::vector<PlanRow>& known_rows() {
  using enum Start;
  using enum Sizes;
  using enum Models;
  using enum Times;
  // clang-format off
  static const std::vector<PlanRow> rows = {
    {"01_single_gpu",    "main",        kAlone,    kOne,     kEach,     kRepeated},
    {"01_single_gpu",    "main",        kAlone,    kThreads, kHeaviest, kRepeated},
    {"02_data_parallel", "main",        kReplicas, kLargest, kHeaviest, kRepeated},
    {"02_data_parallel", "mirrored",    kReplicas, kLargest, kHeaviest, kWithFull},
    {"03_ddp_spawn",     "main",        kSpawn,    kAll,     kEach,     kRepeated},
    {"03_ddp_spawn",     "main",        kSpawn,    kSeveral, kHeaviest, kRepeated, "gloo"},
    {"03_ddp_spawn",     "by_hand",     kSpawn,    kLargest, kHeaviest, kWithFull},
    {"03_ddp_spawn",     "fused",       kSpawn,    kLargest, kHeaviest, kWithFull},
    {"04_ddp_launcher",  "main",        kLauncher, kLargest, kHeaviest, kOnce},
    {"04_ddp_launcher",  "accelerated", kLauncher, kLargest, kHeaviest, kWithFull, "", "mpirun"},
    {"05_multinode",     "main",        kLauncher, kLargest, kHeaviest, kOnce,     "", "mpirun"},
    {"pytorch",    "tuned",    kSpawn,    kSeveral, kEach,     kRepeated, "gloo", "", "pytorch"},
    {"pytorch",    "tuned",    kAlone,    kThreads, kEach,     kRepeated, "",     "", "pytorch"},
    {"pytorch",    "compiled", kSpawn,    kSeveral, kHeaviest, kSlow,     "gloo", "", "pytorch"},
    {"pytorch",    "compiled", kAlone,    kThreads, kHeaviest, kSlow,     "",     "", "pytorch"},
    {"accelerate", "ddp",      kSpawn,    kSeveral, kEach,     kRepeated, "gloo", "", "accelerate"},
    {"tensorflow", "mirrored", kReplicas, kSeveral, kEach,     kRepeated, "",     "", "tensorflow", false},
    {"jax",        "jit",      kAlone,    kThreads, kEach,     kRepeated, "",     "", "jax", false},
    {"jax",        "jit",      kReplicas, kSeveral, kEach,     kRepeated, "",     "", "jax", false},
    {kBuiltPeer,   "reducer",  kSpawn,    kSeveral, kEach,     kRepeated, "gloo", "", kBuiltPeer},
    {kBuiltPeer,   "reducer",  kSpawn,    kSeveral, kEach,     kRepeated, "",     "", kBuiltPeer},
    // Beside frameworks over Gloo, and beside JAX's compiled step.
    {"03_ddp_spawn", "main",  kSpawn, kSeveral, kEach, kRepeated, "gloo", "",
     "pytorch,accelerate,tensorflow,jax"},
    {"03_ddp_spawn", "fused", kSpawn, kLargest, kEach, kRepeated, "shm",  "", "jax", false},
  };
  // clang-format on
  return rows;
}

}  // namespace ddp::bench
