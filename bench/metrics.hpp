// bench/metrics.hpp - reads what a program wrote with --metrics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// One run of a program.
///
/// Note [The job's step]: it ends when the last rank ends it. It begins when the step before has
/// ended, or when its first rank begins, if that is later, as after an epoch. So nothing is counted
/// twice, and the steps add up to the wall clock without what lies between epochs. The longest
/// step of any rank would not: what makes one rank late in a step, the others wait for in that step
/// or in the next. Where the ranks' clocks are not one, the job's step is the mean of its ranks'.
struct Metrics {
  std::vector<double> steps_ms;  ///< the job's, in order, warm-up included
  std::int64_t global_batch = 0;
  double moved = 0;  ///< NaN if a weight is NaN
  double peak_rss_mib = 0;  ///< sum over the ranks
  double first_step_unix_ms = 0;  ///< when the first step ended
};

/// @param ranks processes; each must have written a row for every step
/// @param one_host the processes share a clock
/// @throws Error (1) in one line if the file is missing, cut off, malformed, or lacks a row
Metrics read_metrics(const std::string& path, int ranks, bool one_host);

}  // namespace ddp::bench
