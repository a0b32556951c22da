// bench/metrics.hpp - reads the file of a program's --metrics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// Note [The job's step]: a step of the job ends when the last rank ends it. It begins when the
/// step before has ended, or when the first rank begins it, if that is later, as after an epoch. So
/// no time is counted twice, and the steps add up to the wall time without time between epochs.
/// The longest step of any rank would count a delay twice, because other ranks may wait for it in
/// the next step. If the ranks have different clocks, the job's step is the mean of the ranks'.
struct Metrics {
  std::vector<double> steps_ms;  ///< the job's, in order, warm-up included
  std::int64_t global_batch = 0;
  double moved = 0;  ///< NaN if a weight is NaN
  double peak_rss_mib = 0;  ///< sum over the ranks
  double first_step_unix_ms = 0;  ///< end of the first step
};

/// @param ranks number of processes; each must have written a row for every step
/// @param one_host true if the processes share a clock
/// @throws Error (1) in one line if the file is missing, cut off, malformed, or lacks a row
Metrics read_metrics(const std::string& path, int ranks, bool one_host);

}  // namespace ddp::bench
