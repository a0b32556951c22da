// bench/report/statistics.hpp - medians, percentiles, intervals, and whether two trainings agree.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bench/report/fields.hpp"

namespace ddp::bench {

/// Below this a spread would say more about luck than about the program, so none is given.
inline constexpr std::size_t kMinSamplesForSpread = 5;

/// Of fewer pairs not even their whole range is a 95 % interval: all on one side happens by chance
/// once in 2^4 times.
inline constexpr std::size_t kMinPairsForInterval = 6;

/// Of each side, where values are not paired.
inline constexpr std::size_t kMinValuesForWelch = 3;

/// How far apart two trainings may end, relative to the reference.
inline constexpr double kParityTolerance = 1e-4;
/// The same if one of them rounded its gradients to bf16 or fp16.
inline constexpr double kCompressedParityTolerance = 1e-3;

/// What is reported of a set of samples. No value is better than a comforting one: without samples,
/// or with one that is not finite, nothing is set but `n`; with fewer than kMinSamplesForSpread
/// only the median is.
struct Distribution {
  std::optional<double> median;
  std::optional<double> p10;
  std::optional<double> p90;
  std::optional<double> p95;
  std::size_t n = 0;
  DDP_FIELDS(median, p10, p90, p95, n);
};

struct Interval {
  double low = 0;
  double high = 0;
};

/// Linear interpolation between the closest ranks, as numpy's default.
/// @param q in [0, 1]
/// @return nothing for no values or for one that is not finite
std::optional<double> percentile(std::vector<double> values, double q);
std::optional<double> median(const std::vector<double>& values);
Distribution summarize(const std::vector<double>& values);
/// 0 for no values.
double largest_or_zero(const std::vector<double>& values);

/// What pairs typically differ by, from one value per block.
struct PairedEstimate {
  double value = 0;
  std::optional<Interval> ci95;  ///< none of fewer than kMinPairsForInterval values
};

/// Hodges and Lehmann's estimate (the median of the means of all pairs of values, each with itself
/// too) and the 95 % interval that belongs to it by Wilcoxon's signed ranks. They ask for values
/// that lie alike on both sides of their center, and for no shape beyond that: a launch in six that
/// takes twice as long moves them little. How often the interval holds the truth is counted in
/// tests/statistics_test.cpp.
/// @return nothing for no values or for one that is not finite
std::optional<PairedEstimate> paired_difference(const std::vector<double>& differences);

/// The same on the logarithms of ratios.
/// @return nothing for no ratios or for one that is not a positive number
std::optional<PairedEstimate> paired_ratio(const std::vector<double>& ratios);

/// The factor by which 95 % of Student's t distribution lies within so many standard errors.
/// @param degrees_of_freedom from 1; need not be whole
double student_t95(double degrees_of_freedom);

/// 95 % interval of the ratio b / a of what two programs typically take, from few repetitions of
/// each: Welch's, on the logarithms, because a bootstrap of three values covers only nine times in
/// ten. It is about the geometric means, which are the medians where the logarithms are symmetric,
/// and holds the ratio of the medians even where they are not.
/// @param extra_log_error standard error of the ratio's logarithm that does not show between
///                        repetitions
/// @return nothing for fewer than kMinValuesForWelch values on a side, or for one that is not a
///         positive number
std::optional<Interval> welch_ratio_ci95(const std::vector<double>& a, const std::vector<double>& b,
                                         double extra_log_error = 0);

/// Which samples lie closest to the median by rank: a tenth of them, kMinSamplesForSpread at least.
/// Means over these of the parts of a sample add up to about the median, as medians of the parts
/// do not, and no outlier reaches them.
/// @return indices into `values`; all of them if they are few
std::vector<std::size_t> around_median(const std::vector<double>& values);

/// |moved - reference| <= tolerance * |reference|; false if either is not a number.
bool parity_holds(double moved, double reference, double tolerance = kParityTolerance);

}  // namespace ddp::bench
