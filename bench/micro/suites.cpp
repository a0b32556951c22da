#include "bench/micro/suites.hpp"

#include "bench/micro/all_reduce.hpp"
#include "bench/micro/limits.hpp"

namespace ddp::micro {
namespace {

std::vector<Entry> limits(const std::string& ranks) {
  return {{"limits/gemm_fp32" + ranks, "",
           [](Team& team) { return std::make_unique<MatrixProduct>(team.device()); }},
          {"limits/memory" + ranks, "",
           [](Team& team) { return std::make_unique<MemoryTraffic>(team.lockstep()); }}};
}

std::vector<Entry> all_reduces(const MicroOptions& options, const Team& team,
                               const std::string& ranks) {
  std::vector<Entry> entries;
  const auto add = [&](const std::string& name, const std::string& backend,
                       const std::vector<std::int64_t>& bucket_bytes) {
    entries.push_back({name, backend, [bucket_bytes](Team& each) {
                         return std::make_unique<AllReduce>(each.group(), bucket_bytes);
                       }});
  };
  for (const std::string& backend : team.backends()) {
    for (const std::int64_t bytes : options.bytes) {
      add("all_reduce/" + backend + ranks + "/bytes:" + std::to_string(bytes), backend, {bytes});
    }
    for (const StepBuckets& step : options.steps) {
      add("all_reduce_step/" + backend + ranks + "/" + step.name, backend, step.bytes);
    }
  }
  return entries;
}

std::vector<Entry> pieces(const MicroOptions& options) {
  std::vector<Entry> entries;
  for (const auto& part : {data_pieces(options), optimizer_pieces(options),
                           parameter_pieces(options), snapshot_pieces(options)}) {
    entries.insert(entries.end(), part.begin(), part.end());
  }
  return entries;
}

}  // namespace

std::vector<Entry> make_entries(const MicroOptions& options, const Team& team) {
  const std::string ranks = "/ranks:" + std::to_string(team.world_size());
  switch (options.suite) {
    case Suite::kLimits:
      return limits(ranks);
    case Suite::kAllReduce:
      return all_reduces(options, team, ranks);
    case Suite::kPieces:
      return pieces(options);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown suite");
}

}  // namespace ddp::micro
