// bench/report/relative_fit.hpp - two non-negative coefficients that fit times of any magnitude.
#pragma once

#include <cstddef>
#include <vector>

namespace ddp::bench {

inline constexpr std::size_t kMinFitPoints = 3;

/// value = alpha * x + beta * y is wanted. All three positive and finite.
struct FitPoint {
  double x = 0;
  double y = 0;
  double value = 0;
};

struct FitLine {
  double alpha = 0;
  double beta = 0;
};

/// fitted / measured - 1
double relative_error(const FitLine& line, const FitPoint& point);

/// The sum of their absolute values, each 1 at most: a measurement a hundred times too short is off
/// by 9900 %, one a hundred times too long by 99 %, and neither says more than that it is wrong.
double sum_of_relative_errors(const FitLine& line, const std::vector<FitPoint>& points);

/// Least squares of the relative error with alpha >= 0 and beta >= 0. Points that lie far off the
/// others' line have no weight: up to half of them may.
/// @param points kMinFitPoints of them at least
FitLine fit_relative(const std::vector<FitPoint>& points);

}  // namespace ddp::bench
