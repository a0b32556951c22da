// bench/metrics.hpp - reads what a program says of its steps: its --metrics, or DDP_METRICS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::bench {

/// Note [The job's step]: a step of the job ends when the last rank ends it. It begins when the
/// step before has ended, or when the first rank begins it, if that is later, as after an epoch. So
/// no time is counted twice, and the steps add up to the wall time without time between epochs.
/// The longest step of any rank would count a delay twice, because other ranks may wait for it in
/// the next step. If the ranks have different clocks or write no `end_ns`, the job's step is the
/// mean of the ranks'.
struct Metrics {
  std::vector<double> steps_ms;  ///< the job's, in order, warm-up included
  std::vector<double> losses;  ///< of each step, mean over all samples; empty: a row has none
  std::optional<std::int64_t> global_batch;  ///< of the summary, else the median of the rows' sums
  std::optional<std::int64_t> first_end_ns;  ///< end of rank 0's first step, on its host's clock

  // Of the summary, which is the last line of a stage and a peer.
  bool has_summary = false;
  double moved = 0;  ///< NaN if a weight is NaN
  std::optional<double> peak_rss_mib;  ///< sum over the ranks
};

/// @param ranks number of processes; each must have written a row for every step
/// @param run_ms how long the program ran: ranks whose ends of a step are farther apart have
/// different clocks; 0 on several hosts
/// @throws Error (1) in one line if the file is missing, malformed, or lacks a row
Metrics read_metrics(const std::string& path, int ranks, double run_ms);

}  // namespace ddp::bench
