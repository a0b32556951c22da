// bench/run/metrics.hpp - reads what a stage wrote with --metrics.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// One step of a rank, or of the job.
///
/// Note [The job's step]: it ends when the last rank ends it. It begins when the step before has
/// ended, or when its first rank begins, if that is later, as after an epoch. So nothing is counted
/// twice, and the steps add up to the wall clock without what lies between epochs. The longest
/// step of any rank would not: what makes one rank late in a step, the others wait for in that step
/// or in the next. Where the ranks' clocks are not one, the job's step is the mean of its ranks'.
///
/// Its phases are means over the ranks. A rank waits for communication, and for ranks that come
/// later: what even the rank waits that waits least is communication, the rest imbalance.
struct Step {
  double step_ms = 0;
  double end_ms = 0;  ///< on the host's monotonic clock; not a number where that is not known
  std::array<double, kPhases> phase_ms{};  ///< likewise; of a rank's waits exposed_comm is all
};

/// One run of a stage.
struct StageMetrics {
  std::vector<Step> steps;  ///< of the job, in order, warm-up included
  std::vector<std::vector<double>> step_ms_of_rank;  ///< [rank][step]
  /// What each rank needed for each step besides waiting for the others: [rank][step]. Not a
  /// number where the wait is not known.
  std::vector<std::vector<double>> busy_ms_of_rank;
  std::int64_t warmup_steps = 0;  ///< what the stage says, and more until 50 ms are over
  std::int64_t epochs = 0;
  std::int64_t global_batch = 0;
  int ranks = 0;  ///< processes that wrote rows
  double moved = 0;  ///< not a number if the weights are not
  std::vector<double> all_reduce_bytes;  ///< of a step, in the order in which they start
  std::optional<double> bytes_per_step;  ///< their sum, which peers tell that know no more
  std::vector<double> peak_rss_mib;  ///< per rank
  std::vector<double> peak_device_mib;  ///< per rank, of a GPU; empty on the CPU
  std::vector<double> startup_ms;  ///< per rank, from the start of the process
  std::vector<double> cpu_time_ms;  ///< per rank, of all its threads while it made steps
  std::vector<double> timed_wall_ms;  ///< per rank, of the same steps
  std::vector<double> minor_faults;  ///< per rank, in that time, as the next three
  std::vector<double> major_faults;
  std::vector<double> voluntary_switches;
  std::vector<double> involuntary_switches;
  std::string cores;  ///< that the job may use, "0-3,8"
  std::optional<double> first_step_unix_ms;
  std::optional<double> loss;  ///< on the held-out samples
  std::optional<double> accuracy;
  /// The fields of the last line, the summary.
  DDP_FIELDS(warmup_steps, epochs, global_batch, moved, all_reduce_bytes, bytes_per_step,
             peak_rss_mib, peak_device_mib, startup_ms, cpu_time_ms, timed_wall_ms, minor_faults,
             major_faults, voluntary_switches, involuntary_switches, cores, first_step_unix_ms,
             loss, accuracy);
  /// Peers know less than stages.
  static constexpr const char* kMayLack =
      "all_reduce_bytes, peak_rss_mib, peak_device_mib, startup_ms, cpu_time_ms, timed_wall_ms, "
      "minor_faults, major_faults, voluntary_switches, involuntary_switches, cores";

  std::size_t first_timed_step() const;
  /// The steps that count.
  std::vector<Step> timed_steps() const;
  /// The time of day from the end of the warm-up to the end of the last step. Nothing where a clock
  /// is not known.
  std::optional<Interval> timed_unix_ms() const;
  /// Processor time of all ranks over the time they had: 1 is one core busy per rank. Nothing if
  /// the stage did not say.
  std::optional<double> cpu_utilisation() const;
};

double sum(const std::vector<double>& values);
std::vector<double> step_times_ms(const std::vector<Step>& steps);

/// By the clock, as Note [The job's step] has it: what lies between epochs does not count. As in
/// Run::samples_per_second an epoch's last step is taken for a whole one. Nothing for no steps.
std::optional<double> wall_samples_per_second(std::int64_t global_batch,
                                              const std::vector<Step>& steps);

/// Each of several ranks against the others; empty for one rank, or if a wait is not known.
std::vector<SlowestRank> compare_ranks(const StageMetrics& metrics);

/// @param expected_ranks processes that must have written a row for every step
/// @param one_host they share a clock
/// @param timed_steps that the run was made long enough for, which warm-up leaves. 0: half of them
/// @throws Error (1) in one line if the file is missing, cut off, malformed, or has not exactly one
///         row for each rank and step
StageMetrics read_metrics(const std::string& path, int expected_ranks, bool one_host,
                          std::int64_t timed_steps = 0);

}  // namespace ddp::bench
