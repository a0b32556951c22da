// bench/statistics.hpp - medians, percentiles, intervals, and whether two trainings agree.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace ddp::bench {

/// With fewer samples a spread would describe luck more than the program, so none is given.
inline constexpr std::size_t kMinSamplesForSpread = 5;

/// With fewer pairs not even the whole range is a 95 % interval: five pairs lie on one side by
/// chance once in 2^4 times.
inline constexpr std::size_t kMinPairsForInterval = 6;

/// Largest difference between the ends of two trainings, relative to the reference.
inline constexpr double kParityTolerance = 1e-4;

/// Without samples, or with a sample that is not finite, nothing is set but `n`. Fewer than
/// kMinSamplesForSpread samples set the median only.
struct Distribution {
  std::optional<double> median;
  std::optional<double> p10;
  std::optional<double> p90;
  std::size_t n = 0;
};

struct Interval {
  double low = 0;
  double high = 0;
};

/// Linear interpolation between the closest ranks, as numpy's default.
/// @param q in [0, 1]
/// @return nothing for no values or for a value that is not finite
std::optional<double> percentile(std::vector<double> values, double q);
std::optional<double> median(const std::vector<double>& values);
Distribution summarize(const std::vector<double>& values);

/// Typical difference of pairs, from one value per block.
struct PairedEstimate {
  double value = 0;
  std::optional<Interval> ci95;  ///< nothing for fewer than kMinPairsForInterval values
};

/// Hodges and Lehmann's estimate (the median of the means of all pairs of values, each value with
/// itself too) and its 95 % interval by Wilcoxon's signed ranks. They assume a symmetric
/// distribution and no other shape: a launch in six that takes twice as long moves them little.
/// tests/statistics_test.cpp counts how often the interval holds the truth.
/// @return nothing for no values or for a value that is not finite
std::optional<PairedEstimate> paired_difference(const std::vector<double>& differences);

/// The same on the logarithms of ratios.
/// @return nothing for no ratios or for a ratio that is not a positive number
std::optional<PairedEstimate> paired_ratio(const std::vector<double>& ratios);

/// |moved - reference| <= kParityTolerance * |reference|; false if either is not a number.
bool parity_holds(double moved, double reference);

}  // namespace ddp::bench
