#include "bench/report/catalog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "bench/report/format.hpp"

namespace ddp::bench {
namespace {

/// Of a name such as "64-256-256-10@32".
std::optional<Workload> make_workload(const std::string& name) {
  Workload workload;
  workload.name = name;
  std::istringstream text(name);
  char separator = '-';
  for (std::int64_t number = 0; separator == '-' && text >> number; text >> separator) {
    workload.layers.push_back(number);
  }
  text >> workload.batch;
  const std::vector<std::int64_t>& layers = workload.layers;
  const bool in_range =
      layers.size() >= 2 &&
      std::ranges::all_of(
          layers, [](std::int64_t width) { return width >= 1 && width <= kLargestWidth; }) &&
      workload.batch >= 1 && workload.batch <= kLargestWidth;
  const std::string widths = fmt::format("{}", fmt::join(layers, "-"));
  // One text for one workload: no sign, blank or leading zero, and nothing after it.
  if (!in_range || name != fmt::format("{}@{}", widths, workload.batch)) {
    return std::nullopt;
  }
  workload.description = widths + ", synthetic " + (layers.back() == 1 ? "regression" : "classes");
  return workload;
}

}  // namespace

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
  const auto known = std::ranges::find(known_workloads(), name, &Workload::name);
  if (known != known_workloads().end()) {
    return &*known;
  }
  static std::map<std::string, std::optional<Workload>> made;
  const std::optional<Workload>& found = made.try_emplace(name, make_workload(name)).first->second;
  return found ? &*found : nullptr;
}

std::string workload_description(const std::string& name) {
  const Workload* const found = find_workload(name);
  return found == nullptr ? "" : fmt::format("{}, batch {}", found->description, found->batch);
}

const std::vector<StageProgram>& known_programs() {
  static const std::vector<StageProgram> programs = {
      {kBaseline, "01_single_gpu", "main", Start::kAlone},
      {"02_data_parallel", "02_data_parallel", "main", Start::kReplicas},
      {"02_data_parallel_mirrored", "02_data_parallel", "mirrored", Start::kReplicas},
      {kDistributed, "03_ddp_spawn", "main", Start::kSpawn},
      {"03_ddp_spawn_by_hand", "03_ddp_spawn", "by_hand", Start::kSpawn},
      {"04_ddp_launcher", "04_ddp_launcher", "main", Start::kLauncher},
      {"04_ddp_launcher_accelerated", "04_ddp_launcher", "accelerated", Start::kLauncher},
      {kMultinode, "05_multinode", "main", Start::kLauncher},
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
