#include "bench/catalog.hpp"

#include <algorithm>

namespace ddp::bench {

std::int64_t Model::parameters() const {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < layers.size(); ++i) {
    count += (layers[i - 1] + 1) * layers[i];
  }
  return count;
}

const Model& find_model(const std::string& name) {
  static const std::vector<Model> known = {
      {"T", {20, 1}, 32, 1269, 2000},
      {"S", {64, 128, 128, 10}, 32, 575, 1331},
      {"M", {784, 512, 512, 10}, 64, 39, 46},
      {"L", {1024, 1024, 1024, 1024}, 64, 24, 20},
  };
  return *std::ranges::find(known, name, &Model::name);
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
