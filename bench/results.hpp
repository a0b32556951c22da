// bench/results.hpp - what was measured of each configuration, and the numbers that follow from it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/configuration.hpp"
#include "bench/metrics.hpp"
#include "bench/statistics.hpp"

namespace ddp::bench {

struct Parity {
  std::optional<double> moved;  ///< none: the run failed, or it is not a number
  std::optional<double> reference_moved;  ///< stage 01's
  bool ok = false;
};

/// One timed run.
struct Repetition {
  std::vector<Step> steps;  ///< warm-up dropped
  double median_ms = 0;
  double peak_rss_mib = 0;  ///< of the largest rank, 0: not known
  double startup_ms = 0;
};

/// What is known about one configuration. With an error, no speed of it is reported.
struct Result {
  Configuration configuration;
  std::string error;
  Parity parity;
  double parity_step_ms = 0;  ///< rough, from the parity run: plans the timed ones
  double overhead_s = 0;  ///< what a run takes besides its steps
  std::int64_t steps_per_epoch = 1;  ///< at least
  std::int64_t warmup_steps = 0;  ///< at most
  std::int64_t steps = 0;  ///< timed steps that each repetition has at least
  RunLength length;
  std::vector<std::optional<Repetition>> repetitions;  ///< in time order; none: it was not run
  std::optional<double> bytes_per_step;

  bool has_speed() const;
  /// Over all repetitions.
  std::vector<double> samples_ms() const;
  Distribution step_ms() const;
  std::optional<double> samples_per_second() const;
  /// Means over the steps around the median one, so that they add up to about the median step.
  std::array<std::optional<double>, kPhases> phases_ms() const;
  std::optional<double> peak_rss_mib() const;
  std::optional<double> startup_ms() const;
};

/// `a` against its stage 01: the step times' ratio, one pair per repetition.
struct Comparison {
  std::string a;
  std::string b;
  std::optional<double> ratio_median;
  std::optional<Interval> ci95;
  std::size_t pairs = 0;
};

struct Report {
  std::vector<Result> results;
  std::vector<Comparison> comparisons;  ///< one per configuration that is not its own baseline
  bool partial = false;  ///< interrupted
  bool failed() const;

  /// The stage 01 run that `result` is measured against; nullptr without one that has a speed.
  const Result* baseline_of(const Result& result) const;
  const Comparison* comparison_of(const Result& result) const;
  /// samples/s relative to the baseline's.
  std::optional<double> relative_speedup(const Result& result) const;
  /// relative_speedup / world size: for weak scaling t(01) / t(N), for strong the speed-up per
  /// rank.
  std::optional<double> efficiency(const Result& result) const;
};

/// Fills report.comparisons.
void compare_with_baselines(Report& report);

}  // namespace ddp::bench
