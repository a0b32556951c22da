// bench/metrics.hpp - reads what a stage wrote with --metrics.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::bench {

/// The parts of a step, in the order in which they happen.
enum Phase : std::size_t { kData, kForward, kBackward, kExposedComm, kOptimizer, kPhases };
inline constexpr std::array<const char*, kPhases> kPhaseNames = {"data", "forward", "backward",
                                                                 "exposed_comm", "optimizer"};

/// One step of the job. A job is as fast as its slowest rank, so this is that rank's row.
struct Step {
  double step_ms = 0;
  std::array<double, kPhases> phase_ms{};  ///< not a number where the stage wrote null
};

/// One run of a stage.
struct StageMetrics {
  std::vector<Step> steps;  ///< in order, warm-up included
  std::int64_t warmup_steps = 0;
  std::int64_t epochs = 0;
  std::int64_t global_batch = 0;
  int ranks = 0;  ///< processes that wrote rows
  double moved = 0;  ///< not a number if the weights are not
  std::string backend;
  std::string device;
  std::optional<double> bytes_per_step;
  std::vector<double> peak_rss_mib;  ///< per rank
  std::vector<double> startup_ms;  ///< per rank, from the start of the process
  std::optional<double> first_step_unix_ms;

  /// The steps that count.
  std::vector<Step> timed_steps() const;
};

/// @param expected_ranks processes that must have written a row for every step
/// @throws Error (1) in one line if the file is missing, cut off, malformed, or lacks a row
StageMetrics read_metrics(const std::string& path, int expected_ranks);

}  // namespace ddp::bench
