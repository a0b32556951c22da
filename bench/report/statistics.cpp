#include "bench/report/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

namespace ddp::bench {
namespace {

bool all_finite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

constexpr double kNormal95 = 1.959964;  ///< standard errors within which 95 % of a normal lies

double percentile_of_sorted(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

/// How many of the sorted means of pairs lie beyond each end of a 95 % interval: as many as the
/// signed ranks of `n` values that lie alike on both sides of 0 sum up to at most in 2.5 % of all
/// cases.
std::size_t means_outside(std::size_t n) {
  std::vector<double> share_with_sum = {1};  // of all choices of signs, by the sum of the positive
  for (std::size_t rank = 1; rank <= n; ++rank) {
    std::vector<double> next(share_with_sum.size() + rank);
    for (std::size_t sum = 0; sum < share_with_sum.size(); ++sum) {
      next[sum] += share_with_sum[sum] / 2;
      next[sum + rank] += share_with_sum[sum] / 2;
    }
    share_with_sum = std::move(next);
  }
  constexpr double kEachSide = 0.025;
  std::size_t sum = 0;
  for (double share = share_with_sum[0]; share + share_with_sum[sum + 1] <= kEachSide; ++sum) {
    share += share_with_sum[sum + 1];
  }
  return sum;
}

}  // namespace

std::optional<double> percentile(std::vector<double> values, double q) {
  if (values.empty() || !all_finite(values)) {
    return std::nullopt;
  }
  std::ranges::sort(values);
  return percentile_of_sorted(values, q);
}

std::optional<double> median(const std::vector<double>& values) {
  return percentile(values, 0.5);
}

double largest_or_zero(const std::vector<double>& values) {
  return values.empty() ? 0 : std::ranges::max(values);
}

Distribution summarize(const std::vector<double>& values) {
  Distribution result;
  result.n = values.size();
  result.median = median(values);
  if (values.size() >= kMinSamplesForSpread) {
    result.p10 = percentile(values, 0.10);
    result.p90 = percentile(values, 0.90);
    result.p95 = percentile(values, 0.95);
  }
  return result;
}

std::optional<PairedEstimate> paired_difference(const std::vector<double>& differences) {
  const std::size_t n = differences.size();
  if (n == 0 || !all_finite(differences)) {
    return std::nullopt;
  }
  std::vector<double> means;  // of pairs
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      means.push_back((differences[i] + differences[j]) / 2);
    }
  }
  std::ranges::sort(means);
  PairedEstimate result{.value = percentile_of_sorted(means, 0.5), .ci95 = std::nullopt};
  if (n >= kMinPairsForInterval) {
    const std::size_t outside = means_outside(n);
    result.ci95 = {means[outside], means[means.size() - 1 - outside]};
  }
  return result;
}

std::optional<PairedEstimate> paired_ratio(const std::vector<double>& ratios) {
  std::vector<double> logs;
  std::ranges::transform(ratios, std::back_inserter(logs), [](double r) { return std::log(r); });
  std::optional<PairedEstimate> result = paired_difference(logs);
  if (result) {
    result->value = std::exp(result->value);
    if (result->ci95) {
      result->ci95 = {std::exp(result->ci95->low), std::exp(result->ci95->high)};
    }
  }
  return result;
}

double student_t95(double degrees_of_freedom) {
  // With t = sqrt(df) tan(angle) the density becomes cos(angle)^(df - 1): nothing but an integral
  // over a quarter turn, and the quantile is where 95 % of it is reached.
  constexpr int kCells = 1024;
  const double width = std::acos(-1.0) / 2 / kCells;
  const auto density = [&](int half_cells) {
    return std::pow(std::cos(half_cells * width / 2), degrees_of_freedom - 1);
  };
  std::vector<double> reached = {0};
  for (int cell = 0; cell < kCells; ++cell) {
    // Simpson's rule.
    reached.push_back(reached.back() + density(2 * cell) + 4 * density(2 * cell + 1) +
                      density(2 * cell + 2));
  }
  const double wanted = 0.95 * reached.back();
  const auto above = std::upper_bound(reached.begin(), reached.end(), wanted);
  const double share = (wanted - *(above - 1)) / (*above - *(above - 1));
  const double angle = width * (static_cast<double>(above - 1 - reached.begin()) + share);
  return std::sqrt(degrees_of_freedom) * std::tan(angle);
}

std::optional<Interval> welch_ratio_ci95(const std::vector<double>& a, const std::vector<double>& b,
                                         double extra_log_error) {
  for (const std::vector<double>* values : {&a, &b}) {
    if (values->size() < kMinValuesForWelch || !all_finite(*values) ||
        std::ranges::min(*values) <= 0) {
      return std::nullopt;
    }
  }
  struct Side {
    double degrees_of_freedom = 0;
    double mean = 0;
    double squared_error = 0;  ///< of the mean
  };
  const auto side_of = [](const std::vector<double>& values) {
    const auto n = static_cast<double>(values.size());
    Side side = {.degrees_of_freedom = n - 1};
    for (const double value : values) {
      side.mean += std::log(value) / n;
    }
    for (const double value : values) {
      side.squared_error += std::pow(std::log(value) - side.mean, 2) / (n - 1) / n;
    }
    return side;
  };
  const Side from = side_of(a);
  const Side to = side_of(b);
  const double squared_error = from.squared_error + to.squared_error;
  double half = 0;
  if (squared_error > 0) {
    const double degrees_of_freedom =
        std::pow(squared_error, 2) / (std::pow(from.squared_error, 2) / from.degrees_of_freedom +
                                      std::pow(to.squared_error, 2) / to.degrees_of_freedom);
    half = student_t95(degrees_of_freedom) * std::sqrt(squared_error);
  }
  half = std::hypot(half, kNormal95 * extra_log_error);
  const double center = to.mean - from.mean;
  const double ratio = *median(b) / *median(a);
  return Interval{std::min(std::exp(center - half), ratio),
                  std::max(std::exp(center + half), ratio)};
}

std::vector<std::size_t> around_median(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return values[index]; });
  const std::size_t wanted = std::max(kMinSamplesForSpread, values.size() / 10);
  const std::size_t cut = values.size() > wanted ? (values.size() - wanted) / 2 : 0;
  return {order.begin() + static_cast<std::ptrdiff_t>(cut),
          order.end() - static_cast<std::ptrdiff_t>(cut)};
}

bool parity_holds(double moved, double reference, double tolerance) {
  return std::abs(moved - reference) <= tolerance * std::abs(reference);
}

}  // namespace ddp::bench
