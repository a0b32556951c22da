// bench/statistics.hpp - summaries of times, intervals, and the parity of two trainings.
#pragma once

#include "common/base/percentile.hpp"

namespace ddp::bench {

/// Fewer samples have no spread, which would depend on chance more than on the program.
inline constexpr std::size_t kMinSamplesForSpread = 5;

/// Fewer pairs have no 95 % interval: five pairs lie on the same side by chance once in 2^4 times.
inline constexpr std::size_t kMinPairsForInterval = 6;

/// Largest allowed difference between `moved` of two trainings, relative to the reference.
inline constexpr double kParityTolerance = 1e-4;

/// The same for the losses of the first steps.
inline constexpr double kLossTolerance = 1e-5;
inline constexpr std::size_t kComparedLosses = 20;

/// Median and percentiles. Without samples, or with a sample that is not finite, only `n` is set.
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

Distribution summarize(const std::vector<double>& values);

/// Typical difference of pairs, from a value per block.
struct PairedEstimate {
  double value = 0;
  std::optional<Interval> ci95;  ///< nothing for fewer than kMinPairsForInterval values
};

/// Hodges and Lehmann's estimate, the median of the means of all pairs of values, pairs of a value
/// with itself included, and its 95 % interval by Wilcoxon's signed ranks. They only assume a
/// symmetric distribution. If a launch in six takes twice as long, they change little.
/// tests/bench/statistics_test.cpp counts how often the interval holds the true value.
/// @return nothing for no values or for a value that is not finite
std::optional<PairedEstimate> paired_difference(const std::vector<double>& differences);

/// The same for ratios, by their logarithms; nothing for a ratio that is not a positive number.
std::optional<PairedEstimate> paired_ratio(const std::vector<double>& ratios);

/// The first losses of two trainings.
struct LossDifference {
  double largest = 0;  ///< relative to the second; infinite for a loss that is not a number
  std::size_t step = 0;  ///< the first step that differs by more than kLossTolerance, else the last
};
/// Compares the first kComparedLosses steps: rounding grows with the steps.
/// @param losses not empty, as `reference`
LossDifference compare_losses(const std::vector<double>& losses,
                              const std::vector<double>& reference);

/// |moved - reference| <= kParityTolerance * |reference|; false if either is not a number.
bool parity_holds(double moved, double reference);

}  // namespace ddp::bench
