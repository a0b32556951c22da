// bench/run/metrics.hpp - reads what a stage wrote with --metrics.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// One step of the job. A job is as fast as its slowest rank, so this is that rank's row.
struct Step {
  double step_ms = 0;
  std::array<double, kPhases> phase_ms{};  ///< not a number where the stage wrote null
};

/// One run of a stage.
struct StageMetrics {
  std::vector<Step> steps;  ///< in order, warm-up included
  /// What each rank needed for each step besides waiting for the others: [rank][step]. Not a
  /// number where the wait is not known.
  std::vector<std::vector<double>> busy_ms_of_rank;
  std::int64_t warmup_steps = 0;
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
  std::optional<double> first_step_unix_ms;
  std::optional<double> loss;  ///< on the held-out samples
  std::optional<double> accuracy;
  /// The fields of the last line, the summary.
  DDP_FIELDS(warmup_steps, epochs, global_batch, moved, all_reduce_bytes, bytes_per_step,
             peak_rss_mib, peak_device_mib, startup_ms, cpu_time_ms, timed_wall_ms,
             first_step_unix_ms, loss, accuracy);
  /// Peers know less than stages.
  static constexpr const char* kMayLack =
      "all_reduce_bytes, peak_rss_mib, peak_device_mib, startup_ms, cpu_time_ms, timed_wall_ms";

  /// The steps that count.
  std::vector<Step> timed_steps() const;
  /// Processor time of all ranks over the time they had: 1 is one core busy per rank. Nothing if
  /// the stage did not say.
  std::optional<double> cpu_utilisation() const;
};

double sum(const std::vector<double>& values);

/// @return nothing for one rank, or if a wait is not known
std::optional<SlowestRank> find_slowest_rank(const StageMetrics& metrics);

/// @param expected_ranks processes that must have written a row for every step
/// @throws Error (1) in one line if the file is missing, cut off, malformed, or has not exactly one
///         row for each rank and step
StageMetrics read_metrics(const std::string& path, int expected_ranks);

}  // namespace ddp::bench
