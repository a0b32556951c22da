#include "bench/catalog.hpp"

#include <iterator>

#include "bench/launchers.hpp"
#include "bench/tables.hpp"
#include "common/backends/traits.hpp"

namespace ddp::bench {

std::int64_t Model::parameters() const {
  std::int64_t count = 0;
  for (std::size_t i = 1; i < layers.size(); ++i) {
    count += (layers[i - 1] + 1) * layers[i];
  }
  return count;
}

const std::vector<Model>& known_models() {
  static const std::vector<Model> known = {
      {"T", {20, 1}, 32, 1269, 2000},
      {"S", {64, 128, 128, 10}, 32, 575, 1331},
      {"M", {784, 512, 512, 10}, 64, 39, 46},
      {"L", {1024, 1024, 1024, 1024}, 64, 24, 20},
  };
  return known;
}

namespace {

/// Rows with sizes and times of their own. See stages.list for the others.
std::vector<PlanRow> rows_of_the_plan() {
  using enum LaunchKind;
  using enum Sizes;
  using enum Models;
  using enum Times;
  // clang-format off
  return {
    {"01_single_gpu",    "main",        kOne,     kEach,     kRepeated},
    {"01_single_gpu",    "main",        kThreads, kHeaviest, kRepeated},
    {"02_data_parallel", "main",        kLargest, kHeaviest, kRepeated},
    {"03_ddp_spawn",     "main",        kAll,     kEach,     kRepeated},
    {"03_ddp_spawn",     "main",        kSeveral, kHeaviest, kRepeated, kGloo},
    {"03_ddp_spawn",     "compiled",    kLargest, kEach,     kRepeated},
    {"03_ddp_spawn",     "fused",       kLargest, kEach,     kRepeated},
    {"04_ddp_launcher",  "main",        kLargest, kHeaviest, kOnce},
    {"04_ddp_launcher",  "accelerated", kLargest, kHeaviest, kWithFull, "", kMpirunName},
    {"05_multinode",     "main",        kLargest, kHeaviest, kOnce,     "", kMpirunName},
    {"pytorch",    "tuned",    kSeveral, kEach,     kRepeated, kGloo, "", "pytorch",    kSpawn},
    {"pytorch",    "tuned",    kSeveral, kEach,     kRepeated, kShm,  "", "pytorch",    kSpawn},
    {"pytorch",    "tuned",    kThreads, kEach,     kRepeated, "",    "", "pytorch",    kAlone},
    {"pytorch",    "compiled", kSeveral, kHeaviest, kSlow,     kGloo, "", "pytorch",    kSpawn},
    {"pytorch",    "compiled", kThreads, kHeaviest, kSlow,     "",    "", "pytorch",    kAlone},
    {"accelerate", "ddp",      kSeveral, kEach,     kRepeated, kGloo, "", "accelerate", kSpawn},
    {"tensorflow", "mirrored", kSeveral, kEach,     kRepeated, "",    "", "tensorflow", kReplicas, false},
    {"jax",        "jit",      kThreads, kEach,     kRepeated, "",    "", "jax",        kAlone,    false},
    {"jax",        "jit",      kSeveral, kEach,     kRepeated, "",    "", "jax",        kReplicas, false},
    // Beside frameworks over Gloo, and beside JAX's compiled step.
    {"03_ddp_spawn", "main",  kSeveral, kEach, kRepeated, kGloo, "", "pytorch,accelerate,tensorflow,jax"},
    {"03_ddp_spawn", "compiled", kLargest, kEach, kRepeated, kShm, "", "jax", kSpawn, false},
    {"03_ddp_spawn", "fused",    kLargest, kEach, kRepeated, kShm, "", "jax", kSpawn, false},
  };
  // clang-format on
}

}  // namespace

const std::vector<PlanRow>& known_rows() {
  static const std::vector<PlanRow> all = [] {
    const std::vector<std::string> launches = {"alone", "replicas", kSpawnLauncher.name,
                                               "launcher"};
    const std::vector<PlanRow> plan = rows_of_the_plan();
    std::vector<PlanRow> rows;
    for (const std::vector<std::string>& cells : table_rows(kStagesList)) {
      const std::vector<std::string> source = split(cells.at(0), '/');
      std::vector<PlanRow> own = plan;
      std::erase_if(own, [&](const PlanRow& row) {
        return row.stage != source.at(0) || row.variant != source.at(1);
      });
      if (std::ranges::none_of(own, [](const PlanRow& row) { return row.peers.empty(); })) {
        own.push_back({.stage = source.at(0), .variant = source.at(1)});
      }
      for (PlanRow& row : own) {
        row.launch = LaunchKind(std::ranges::find(launches, cells.at(2)) - launches.begin());
        row.lacks = cell_parts(cells.at(4));
        if (row.has("bench")) {
          rows.push_back(row);
        }
      }
    }
    std::ranges::copy_if(plan, std::back_inserter(rows), &PlanRow::is_peer);
    // Peers come after the stages, and then what stands beside the peers.
    std::ranges::stable_sort(rows, {}, [](const PlanRow& row) {
      return row.peers.empty() ? 0 : row.is_peer() ? 1 : 2;
    });
    return rows;
  }();
  return all;
}

}  // namespace ddp::bench
