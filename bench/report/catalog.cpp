#include "bench/report/catalog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bench/report/format.hpp"

namespace ddp::bench {

const std::vector<Workload>& known_workloads() {
  static const std::vector<Workload> workloads = {
      {"T", "the tutorial's 20-1, synthetic regression", 32, true, {20, 1}},
      {"S", "64-128-128-10, synthetic classes", 32, true, {64, 128, 128, 10}},
      {"M", "784-512-512-10, synthetic classes", 64, true, {784, 512, 512, 10}},
      {"L", "1024-1024-1024-1024, synthetic classes", 64, true, {1024, 1024, 1024, 1024}},
      {"digits", "64-128-128-10 on 1,797 handwritten digits", 32, false, {64, 128, 128, 10}},
  };
  return workloads;
}

std::vector<std::string> Workload::stage_options() const {
  if (synthetic) {
    return {"--layers", fmt::format("{}", fmt::join(layers, ","))};
  }
  // The dataset says how many features and classes there are.
  return {"--dataset", name, "--hidden",
          fmt::format("{}", fmt::join(layers.begin() + 1, layers.end() - 1, ","))};
}

const Workload* find_workload(const std::string& name) {
  const auto found = std::ranges::find(known_workloads(), name, &Workload::name);
  return found == known_workloads().end() ? nullptr : &*found;
}

std::string workload_description(const std::string& name) {
  const Workload* const found = find_workload(name);
  return found == nullptr ? "" : fmt::format("{}, batch {}", found->description, found->batch);
}

const std::vector<StageProgram>& known_programs() {
  static const std::vector<StageProgram> programs = {
      {kBaseline, "01_single_gpu", "main", Start::kAlone, true},
      {"02_data_parallel", "02_data_parallel", "main", Start::kReplicas, true},
      {"02_data_parallel_mirrored", "02_data_parallel", "mirrored", Start::kReplicas, true},
      {"03_ddp_spawn", "03_ddp_spawn", "main", Start::kSpawn, true},
      {"03_ddp_spawn_by_hand", "03_ddp_spawn", "by_hand", Start::kSpawn, true},
      {"04_ddp_launcher", "04_ddp_launcher", "main", Start::kLauncher, true},
      {"04_ddp_launcher_accelerated", "04_ddp_launcher", "accelerated", Start::kLauncher, true},
      {kMultinode, "05_multinode", "main", Start::kLauncher, true},
  };
  return programs;
}

const std::vector<PeerVariant>& known_peers() {
  static const std::vector<PeerVariant> peers = {
      {"pytorch", "single", true, "pytorch_training.py"},
      {"pytorch", "single_fused", true, "pytorch_training.py"},
      {"pytorch", "cuda_graph", true, "pytorch_graph.py", "cuda"},
      {"pytorch", "default", false, "pytorch_training.py"},
      {"pytorch", "tutorial", false, "pytorch_tutorial.py"},
      {"pytorch", "tuned", false, "pytorch_training.py"},
      {"pytorch", "tuned_pinned", false, "pytorch_training.py"},
      {"pytorch", "compiled", false, "pytorch_training.py"},
      {"accelerate", "single", true, "accelerate_training.py"},
      {"accelerate", "ddp", false, "accelerate_training.py"},
      {"fabric", "single", true, "fabric_training.py"},
      {"fabric", "ddp", false, "fabric_training.py"},
      {"tensorflow", "single", true, "tensorflow_training.py", "cpu", Start::kReplicas},
      {"tensorflow", "mirrored", false, "tensorflow_training.py", "cpu", Start::kReplicas},
      {"c10d", "reducer", false, "c10d.cpp", "", Start::kSpawn, /*built_here=*/true},
      {"libtorch", "data_parallel", false, "libtorch.cpp", "cuda", Start::kReplicas,
       /*built_here=*/true},
  };
  return peers;
}

std::string Gradients::suffix() const {
  std::string text;
  if (bucket_mib != Gradients().bucket_mib) {
    text += "/bucket:" + format_shortest(bucket_mib);
  }
  text += compression == "none" ? "" : "/" + compression;
  return text + (shard_optimizer ? "/sharded" : "");
}

}  // namespace ddp::bench
