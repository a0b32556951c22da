#include "bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace ddp::bench {
namespace {

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double value) { return std::isfinite(value); });
}

double percentile_of_sorted(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

}  // namespace

std::optional<double> percentile(std::vector<double> values, double q) {
  if (values.empty() || !all_finite(values)) {
    return std::nullopt;
  }
  std::sort(values.begin(), values.end());
  return percentile_of_sorted(values, std::clamp(q, 0.0, 1.0));
}

std::optional<double> median(const std::vector<double>& values) {
  return percentile(values, 0.5);
}

Distribution summarize(const std::vector<double>& values) {
  Distribution result;
  result.n = values.size();
  if (values.empty() || !all_finite(values)) {
    return result;
  }
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  result.median = percentile_of_sorted(sorted, 0.5);
  if (sorted.size() >= kMinSamplesForSpread) {
    result.p10 = percentile_of_sorted(sorted, 0.10);
    result.p90 = percentile_of_sorted(sorted, 0.90);
    result.p95 = percentile_of_sorted(sorted, 0.95);
  }
  return result;
}

std::optional<Interval> bootstrap_median_ci95(const std::vector<double>& values, int resamples,
                                              std::uint64_t seed) {
  if (values.size() < kMinPairsForInterval || !all_finite(values) || resamples < 1) {
    return std::nullopt;
  }
  std::mt19937_64 engine(seed);
  std::vector<double> medians;
  medians.reserve(static_cast<std::size_t>(resamples));
  std::vector<double> resample(values.size());
  for (int i = 0; i < resamples; ++i) {
    // The engine's own numbers, because a library's distributions differ between compilers.
    for (double& value : resample) {
      value = values[engine() % values.size()];
    }
    std::sort(resample.begin(), resample.end());
    medians.push_back(percentile_of_sorted(resample, 0.5));
  }
  std::sort(medians.begin(), medians.end());
  return Interval{
      .low = percentile_of_sorted(medians, 0.025),
      .high = percentile_of_sorted(medians, 0.975),
  };
}

std::vector<std::size_t> around_median(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  const std::size_t wanted = std::max(kMinSamplesForSpread, values.size() / 10);
  const std::size_t cut = values.size() > wanted ? (values.size() - wanted) / 2 : 0;
  return {order.begin() + static_cast<std::ptrdiff_t>(cut),
          order.end() - static_cast<std::ptrdiff_t>(cut)};
}

bool parity_holds(double moved, double reference, double tolerance) {
  return std::abs(moved - reference) <= tolerance * std::abs(reference);
}

}  // namespace ddp::bench
