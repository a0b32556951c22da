// bench/pair.hpp - speeds and ratios, from launches that ran close together in time.
#pragma once

#include <vector>

#include "bench/record.hpp"

namespace ddp::bench {

/// Runs of the same model, scaling and device in the report's order, without the controls.
using Workload = std::vector<const Run*>;
std::vector<Workload> workloads(const Report& report);

/// The stage's run with the most samples per second, of those that `wanted` admits. Runs with too
/// few repetitions for an interval are passed over, unless all of the workload have so few.
/// @return nullptr for none
template <typename Wanted>
const Run* fastest_stage(const Workload& runs, Wanted wanted);
/// The stages' runs among which fastest_stage() chooses.
Workload contenders(const Workload& runs);

/// Fills every run's speeds and report.comparisons, from the repetitions:
///   control   an equal command once more, and its original
///   baseline  each run, and stage 01 with one thread
///   best      the fastest stage's run, and each other contender
///   threads   the fastest ranks, and one process with as many threads
///   peer      the fastest stage's run on the same cores with the same global batch, and the best
///             of each framework and transport; the same for stages over that transport
/// A run with an error or without parity has no speed and is compared with nothing.
void pair(Report& report);

template <typename Wanted>
const Run* fastest_stage(const Workload& runs, Wanted wanted) {
  const Run* fastest = nullptr;
  for (const Run* run : contenders(runs)) {
    if (wanted(*run) &&
        (fastest == nullptr || *run->samples_per_second > *fastest->samples_per_second)) {
      fastest = run;
    }
  }
  return fastest;
}

}  // namespace ddp::bench
