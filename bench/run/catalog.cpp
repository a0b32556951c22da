#include "bench/run/catalog.hpp"

namespace ddp::bench {
namespace {

Workload synthetic(const std::string& name, const std::string& what, std::int64_t batch,
                   const std::vector<std::int64_t>& layers) {
  std::string widths;
  for (const std::int64_t width : layers) {
    widths += (widths.empty() ? "" : ",") + std::to_string(width);
  }
  return {name, what, batch, {"--layers", widths}, true, layers};
}

}  // namespace

const std::vector<Workload>& known_workloads() {
  static const std::vector<Workload> workloads = {
      synthetic("T", "the tutorial's 20-1, synthetic regression", 32, {20, 1}),
      synthetic("S", "64-128-128-10, synthetic classes", 32, {64, 128, 128, 10}),
      synthetic("M", "784-512-512-10, synthetic classes", 64, {784, 512, 512, 10}),
      synthetic("L", "1024-1024-1024-1024, synthetic classes", 64, {1024, 1024, 1024, 1024}),
      {"digits",
       "64-128-128-10 on 1,797 handwritten digits",
       32,
       {"--dataset", "digits", "--hidden", "128,128"},
       false,
       {64, 128, 128, 10}},
  };
  return workloads;
}

std::string workload_description(const std::string& name) {
  for (const Workload& workload : known_workloads()) {
    if (workload.name == name) {
      return workload.description + ", batch " + std::to_string(workload.batch);
    }
  }
  return "";
}

const std::vector<StageProgram>& known_programs() {
  static const std::vector<StageProgram> programs = {
      {kBaseline, "01_single_gpu", "main", Start::kAlone, true},
      {"02_data_parallel", "02_data_parallel", "main", Start::kReplicas, true},
      {"02_data_parallel_mirrored", "02_data_parallel", "mirrored", Start::kReplicas, false},
      {"03_ddp_spawn", "03_ddp_spawn", "main", Start::kSpawn, true},
      {"03_ddp_spawn_by_hand", "03_ddp_spawn", "by_hand", Start::kSpawn, true},
      {"04_ddp_launcher", "04_ddp_launcher", "main", Start::kLauncher, true},
      {"04_ddp_launcher_accelerated", "04_ddp_launcher", "accelerated", Start::kLauncher, false},
      {kMultinode, "05_multinode", "main", Start::kLauncher, true},
  };
  return programs;
}

const std::vector<PeerVariant>& known_peers() {
  static const std::vector<PeerVariant> peers = {
      {"pytorch", "single", true},
      {"pytorch", "single_fused", true},
      {"pytorch", "cuda_graph", true, /*cuda_only=*/true},
      {"pytorch", "default", false},
      {"pytorch", "tuned", false},
      {"pytorch", "tuned_pinned", false},
      {"c10d", "reducer", false, /*cuda_only=*/false, /*built_here=*/true},
  };
  return peers;
}

}  // namespace ddp::bench
