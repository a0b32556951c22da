#include "bench/micro/suites.hpp"

#include <fmt/format.h>

#include "bench/micro/all_reduce.hpp"

namespace ddp::micro {
namespace {

std::vector<Entry> all_reduce_entries(const MicroOptions& options, const Team& team,
                                      const std::string& ranks) {
  std::vector<Entry> entries;
  const auto add = [&](const std::string& kind, const std::string& backend, const std::string& what,
                       const std::vector<std::int64_t>& bucket_bytes) {
    entries.push_back(
        {fmt::format("{}/{}{}/{}", kind, backend, ranks, what), backend,
         [bucket_bytes](Team& each) { return all_reduce(each.group(), bucket_bytes); }});
  };
  for (const std::string& backend : team.backends()) {
    for (const std::int64_t bytes : options.bytes) {
      add("all_reduce", backend, fmt::format("bytes:{}", bytes), {bytes});
    }
    for (const StepBuckets& step : options.steps) {
      add("all_reduce_step", backend, step.name, step.bytes);
    }
  }
  return entries;
}

}  // namespace

std::vector<Entry> make_entries(const MicroOptions& options, const Team& team) {
  const std::string ranks = fmt::format("/ranks:{}", team.world_size());
  return options.suite == "limits"       ? limit_entries(ranks, team.device())
         : options.suite == "all_reduce" ? all_reduce_entries(options, team, ranks)
                                         : piece_entries(options);
}

}  // namespace ddp::micro
