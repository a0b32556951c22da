// common/base/percentile.hpp - percentiles and medians.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace ddp {

/// Percentile with linear interpolation between the closest ranks, as numpy's default.
/// @param sorted at least one value, ascending
/// @param q in [0, 1]
inline double percentile_of_sorted(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double weight = position - static_cast<double>(below);
  return sorted[below] + weight * (sorted[above] - sorted[below]);
}

inline bool all_finite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

/// The same of values in any order.
/// @return nothing for no values or for a value that is not finite
inline std::optional<double> percentile(std::vector<double> values, double q) {
  if (values.empty() || !all_finite(values)) {
    return std::nullopt;
  }
  std::ranges::sort(values);
  return percentile_of_sorted(values, q);
}

inline std::optional<double> median(std::vector<double> values) {
  return percentile(std::move(values), 0.5);
}

}  // namespace ddp
