#include "bench/report/relative_fit.hpp"

#include <algorithm>
#include <cmath>

#include "bench/report/statistics.hpp"

namespace ddp::bench {
namespace {

/// The smallest sum of absolute errors, which a few points that lie far off cannot move. Without
/// the bound it is reached where two of the points have no error, or where one has none and alpha
/// or beta is 0; so these are tried.
FitLine fit_least_absolute(const std::vector<FitPoint>& points) {
  FitLine best;
  double best_sum = sum_of_relative_errors(best, points);
  const auto consider = [&](double alpha, double beta) {
    const FitLine line{alpha, beta};
    const double sum = sum_of_relative_errors(line, points);
    if (alpha >= 0 && beta >= 0 && sum < best_sum) {
      best = line;
      best_sum = sum;
    }
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    const FitPoint& a = points[i];
    consider(a.value / a.x, 0);
    consider(0, a.value / a.y);
    for (std::size_t j = 0; j < i; ++j) {
      const FitPoint& b = points[j];
      const double determinant = a.x * b.y - b.x * a.y;  // 0: no number, and no candidate
      consider((a.value * b.y - b.value * a.y) / determinant,
               (b.value * a.x - a.value * b.x) / determinant);
    }
  }
  return best;
}

/// Two unknowns: either neither is negative where the weighted squares are least, or one of them is
/// 0.
FitLine fit_least_squares(const std::vector<FitPoint>& points, const std::vector<double>& weights) {
  double uu = 0;
  double uv = 0;
  double vv = 0;
  double u = 0;
  double v = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    // Divided by the measured value, what is wanted is 1 = alpha * x + beta * y.
    const double x = points[i].x / points[i].value;
    const double y = points[i].y / points[i].value;
    uu += weights[i] * x * x;
    uv += weights[i] * x * y;
    vv += weights[i] * y * y;
    u += weights[i] * x;
    v += weights[i] * y;
  }
  const double determinant = uu * vv - uv * uv;
  const FitLine free{(u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant};
  if (free.alpha >= 0 && free.beta >= 0) {
    return free;
  }
  // Alone, they lower the sum of squares by u^2 / uu and v^2 / vv.
  return u * u * vv >= v * v * uu ? FitLine{u / uu, 0} : FitLine{0, v / vv};
}

}  // namespace

double relative_error(const FitLine& line, const FitPoint& point) {
  return (line.alpha * point.x + line.beta * point.y) / point.value - 1;
}

double sum_of_relative_errors(const FitLine& line, const std::vector<FitPoint>& points) {
  double sum = 0;
  for (const FitPoint& point : points) {
    sum += std::min(std::abs(relative_error(line, point)), 1.0);
  }
  return sum;
}

/// Starts from the least absolute errors, then weighs each point by how far off it lies (Tukey's
/// biweight), again and again.
FitLine fit_relative(const std::vector<FitPoint>& points) {
  constexpr double kFarOff = 4.685;  // standard deviations; keeps 95 % of the efficiency
  constexpr double kDeviationsPerMedian = 1.4826;  // of a normal distribution's absolute values
  constexpr double kSmallestDeviation = 1e-6;  // of data without noise
  constexpr int kRounds = 20;
  FitLine line = fit_least_absolute(points);
  std::vector<double> weights(points.size());
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> errors;
    errors.reserve(points.size());
    for (const FitPoint& point : points) {
      errors.push_back(std::abs(relative_error(line, point)));
    }
    const double deviation = kDeviationsPerMedian * median(errors).value_or(0);
    const double limit = kFarOff * std::max(kSmallestDeviation, deviation);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double distance = std::min(errors[i] / limit, 1.0);
      weights[i] = (1 - distance * distance) * (1 - distance * distance);
      kept += weights[i] > 0 ? 1U : 0U;
    }
    const FitLine next = fit_least_squares(points, weights);
    if (kept < kMinFitPoints || !std::isfinite(next.alpha) || !std::isfinite(next.beta)) {
      break;
    }
    line = next;
  }
  return line;
}

}  // namespace ddp::bench
