// bench/run/results.hpp - what was measured of each configuration, and the report that follows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/analysis.hpp"
#include "bench/report/micro_results.hpp"
#include "bench/report/record.hpp"
#include "bench/run/child_process.hpp"
#include "bench/run/configuration.hpp"
#include "bench/run/metrics.hpp"

namespace ddp::bench {

/// The error of a configuration that Ctrl-C kept from being measured.
inline constexpr const char* kInterrupted = "interrupted before it was measured";

/// One run of a stage program.
struct StageRun {
  std::string error;  ///< empty: it ran, and `metrics` are complete
  bool usage_error = false;  ///< it refused its command line or its environment
  bool interrupted = false;  ///< it was stopped; then it says nothing about the stage
  StageMetrics metrics;
  double wall_s = 0;
  /// From the start of the command to the end of the first step; 0: its framework was imported.
  double startup_ms = 0;
  std::optional<GpuUsage> gpu;
  LaunchConditions conditions;
};

struct Result {
  Configuration configuration;
  std::string error;
  Parity parity;
  double parity_step_ms = 0;  ///< rough, from the parity run: plans the timed ones
  double overhead_s = 0;  ///< what a run takes besides its steps
  std::int64_t steps_per_epoch = 1;  ///< at least
  std::int64_t warmup_steps = 0;  ///< at most
  RunLength length;
  std::vector<std::optional<StageRun>> repetitions;  ///< one per block; none: it was not run
  /// The parity run, which tells start-up and memory of a peer whose repetitions are forks of a
  /// process that has imported its framework. Else none.
  std::optional<StageRun> whole_start;
  std::vector<double> bucket_bytes;  ///< the all-reduces of a step
  std::optional<double> told_bytes_per_step;  ///< where they are not told one by one
  std::optional<double> alone_ms;  ///< these all-reduces with nothing else going on
  std::optional<double> no_comm_step_ms;
  std::vector<double> no_comm_medians_ms;  ///< one per block, as repetition_medians_ms()

  bool was_measured() const;
  /// Of all repetitions, warm-up dropped; none of a run that has an error.
  std::vector<Step> timed_steps() const;
  /// One per repetition; not a number for one that has none.
  std::vector<double> repetition_medians_ms() const;
};

struct Measurements {
  std::vector<Result> results;
  MicroResults micro;  ///< limits of the machine, all-reduce sweep, with --micro the pieces
  std::vector<TimeToAccuracy> time_to_accuracy{};
  bool partial = false;  ///< interrupted
  std::optional<Network> network{};  ///< that was stated, to predict more ranks with

  bool failed() const;
  /// Of timed runs: as many as the most repetitions of a configuration.
  int blocks() const;
};

/// Mean over `unix_ms` of what lies on the lines between samples, and beyond the first and the last
/// one on these. Nothing without a sample.
std::optional<double> mean_power_w(const std::vector<GpuPower>& samples, const Interval& unix_ms);

/// Everything of the report that follows from measurements: without machine, software, settings,
/// and what was not run.
Report make_report(const Measurements& measurements);

}  // namespace ddp::bench
