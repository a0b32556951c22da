#include "bench/statistics.hpp"

#include <iterator>
#include <limits>

namespace ddp::bench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Number of sorted means of pairs beyond each end of a 95 % interval: the largest sum that the
/// positive signed ranks of `n` symmetric values do not exceed in at most 2.5 % of all cases.
std::size_t means_outside(std::size_t n) {
  std::vector<double> share_with_sum = {1};  // share of all choices of signs, by their sum
  for (std::size_t rank = 1; rank <= n; ++rank) {
    std::vector<double> next(share_with_sum.size() + rank);
    for (std::size_t sum = 0; sum < share_with_sum.size(); ++sum) {
      next[sum] += share_with_sum[sum] / 2;
      next[sum + rank] += share_with_sum[sum] / 2;
    }
    share_with_sum = std::move(next);
  }
  std::size_t sum = 0;
  for (double share = share_with_sum[0]; share + share_with_sum[sum + 1] <= 0.025; ++sum) {
    share += share_with_sum[sum + 1];
  }
  return sum;
}

}  // namespace

Distribution summarize(const std::vector<double>& values) {
  Distribution result = {.median = median(values), .p10 = {}, .p90 = {}, .n = values.size()};
  if (values.size() >= kMinSamplesForSpread) {
    result.p10 = percentile(values, 0.10);
    result.p90 = percentile(values, 0.90);
  }
  return result;
}

std::optional<PairedEstimate> paired_difference(const std::vector<double>& differences) {
  const std::size_t n = differences.size();
  if (n == 0 || !all_finite(differences)) {
    return std::nullopt;
  }
  std::vector<double> means;  // means of pairs
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

LossDifference compare_losses(const std::vector<double>& losses,
                              const std::vector<double>& reference) {
  LossDifference result;
  const std::size_t steps = std::min({losses.size(), reference.size(), kComparedLosses});
  for (std::size_t step = 0; step < steps; ++step) {
    const double apart = std::abs(losses[step] / reference[step] - 1);
    const bool is_equal = losses[step] == reference[step];  // also 0 and 0
    if (result.largest <= kLossTolerance) {
      result.step = step;
    }
    result.largest = std::max(result.largest, is_equal ? 0 : std::isnan(apart) ? kInfinity : apart);
  }
  return result;
}

bool parity_holds(double moved, double reference) {
  return std::abs(moved - reference) <= kParityTolerance * std::abs(reference);
}

}  // namespace ddp::bench
