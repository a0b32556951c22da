// bench/report/verdict.hpp - what may be said of two runs whose ratio was measured.
#pragma once

#include <optional>
#include <string>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// Two equal things may differ by this; if they differ by more, no verdict is given.
inline constexpr double kControlTolerance = 0.03;

/// Of a lower efficiency it is said where the rest goes.
inline constexpr double kScaledEfficiency = 0.8;

/// A launch whose median step is over this times that of its configuration's fastest is slow.
inline constexpr double kSlowLaunch = 1.5;

/// From this share of the processors' time on, what others use of it disturbs a measurement.
inline constexpr double kDisturbedShare = 0.1;

/// Whether two runs of one command are known to be close enough to believe other differences: the
/// whole interval lies within kControlTolerance of 1. One that is not there says nothing good.
bool is_control_good(const std::optional<Interval>& ci95);

/// Step times of a over those of b, from the blocks that both have.
std::vector<double> paired_ratios(const Run& a, const Run& b);

/// @param ci95 of a ratio of step times
/// @param even the ratio at which neither side is faster
/// @return "same" if the whole interval lies within kControlTolerance of `even`, else "faster" or
///         "slower" if it lies on one side; nothing for one that could be either, or for none
std::optional<std::string> judge(const std::optional<Interval>& ci95, double even);

/// The ratio of step times at which `run` handles as many samples a second as `baseline`: with more
/// samples in a step it may take longer and still be the faster one.
double break_even_ratio(const Run& run, const Run& baseline);

/// How far equal commands may differ, of the workload of `run` and its kind, one process or
/// several: from the lowest end of the controls' intervals to the highest.
/// @return nothing without a control that has an interval
std::optional<Interval> control_interval(const Report& report, const Run& run);

/// Samples per second of a over those of b.
struct SpeedRatio {
  double ratio = 1;
  std::optional<Interval> ci95{};
  /// The interval excludes 1 by more than equal commands may differ by: only then it is said that
  /// one of the two is faster.
  bool is_told_apart = false;
  /// The most that equal commands may differ by, a factor >= 1; nothing without controls.
  std::optional<double> control_factor{};
};

/// Of two runs of one report. @return nothing for runs that share no block
std::optional<SpeedRatio> speed_ratio(const Report& report, const Run& a, const Run& b);

/// Fills report.comparisons: every run with its stage 01, originals with their controls, variants
/// with their stage's main program, stages with peers of the same world size.
void compare(Report& report);

}  // namespace ddp::bench
