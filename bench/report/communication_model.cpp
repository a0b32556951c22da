#include "bench/report/communication_model.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <span>

#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"

namespace ddp::bench {
namespace {

constexpr double kMib = 1024.0 * 1024.0;
constexpr std::size_t kMinPoints = 3;
constexpr std::size_t kMinSizesPerRegime = 3;
constexpr std::size_t kMaxRegimes = 3;

/// Whether one mean relative error is so much less than another that it is not noise: that alone
/// lets it fall a little with every number that is fitted.
/// @param lines that are fitted more
bool is_clearly_less(double error, double other, std::size_t lines = 1) {
  constexpr double kFactor = 0.6;
  constexpr double kDifference = 0.01;
  return error <= other * std::pow(kFactor, lines) && other - error >= kDifference;
}

/// What alpha and beta are multiplied with.
struct Factors {
  double alpha = 0;
  double beta_mib = 0;
};

Factors factors(const std::optional<AllReduceAlgorithm>& algorithm, double bytes, int world_size) {
  const double ranks = world_size;
  if (!algorithm) {
    return {1, bytes / kMib};
  }
  if (*algorithm == AllReduceAlgorithm::kRing) {
    return {2 * (ranks - 1), 2 * (ranks - 1) / ranks * bytes / kMib};
  }
  return {2 * std::log2(ranks), 2 * bytes / kMib};
}

/// One all-reduce: time_us = alpha * x + beta * y is wanted. The last three are positive, finite.
struct Point {
  std::int64_t bytes = 0;
  int world_size = 0;
  double x = 0;
  double y = 0;
  double time_us = 0;
};

struct Line {
  std::int64_t first_bytes = 0;  ///< the smallest size that it was fitted to
  double alpha = 0;
  double beta = 0;
};

/// fitted / measured - 1
double relative_error(const Line& line, const Point& point) {
  return (line.alpha * point.x + line.beta * point.y) / point.time_us - 1;
}

/// The sum of their absolute values, each 1 at most: a measurement a hundred times too short is off
/// by 9900 %, one a hundred times too long by 99 %, and neither says more than that it is wrong.
double sum_of_relative_errors(const Line& line, const std::vector<Point>& points) {
  double sum = 0;
  for (const Point& point : points) {
    sum += std::min(std::abs(relative_error(line, point)), 1.0);
  }
  return sum;
}

/// The smallest sum of absolute errors, which a few points that lie far off cannot move. Without
/// the bound it is reached where two of the points have no error, or where one has none and alpha
/// or beta is 0; so these are tried.
Line fit_least_absolute(const std::vector<Point>& points) {
  Line best;
  double best_sum = sum_of_relative_errors(best, points);
  const auto consider = [&](double alpha, double beta) {
    const Line line{.alpha = alpha, .beta = beta};
    const double sum = sum_of_relative_errors(line, points);
    if (alpha >= 0 && beta >= 0 && sum < best_sum) {
      best = line;
      best_sum = sum;
    }
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& a = points[i];
    consider(a.time_us / a.x, 0);
    consider(0, a.time_us / a.y);
    for (std::size_t j = 0; j < i; ++j) {
      const Point& b = points[j];
      const double determinant = a.x * b.y - b.x * a.y;  // 0: no number, and no candidate
      consider((a.time_us * b.y - b.time_us * a.y) / determinant,
               (b.time_us * a.x - a.time_us * b.x) / determinant);
    }
  }
  return best;
}

/// Two unknowns: where the weighted squares are least, neither is negative or one of them is 0.
Line fit_least_squares(const std::vector<Point>& points, const std::vector<double>& weights) {
  double uu = 0;
  double uv = 0;
  double vv = 0;
  double u = 0;
  double v = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    // Divided by the measured value, what is wanted is 1 = alpha * x + beta * y.
    const double x = points[i].x / points[i].time_us;
    const double y = points[i].y / points[i].time_us;
    uu += weights[i] * x * x;
    uv += weights[i] * x * y;
    vv += weights[i] * y * y;
    u += weights[i] * x;
    v += weights[i] * y;
  }
  const double determinant = uu * vv - uv * uv;
  const Line free{.alpha = (u * vv - v * uv) / determinant,
                  .beta = (v * uu - u * uv) / determinant};
  if (free.alpha >= 0 && free.beta >= 0) {
    return free;
  }
  // Alone, they lower the sum of squares by u^2 / uu and v^2 / vv.
  return u * u * vv >= v * v * uu ? Line{.alpha = u / uu} : Line{.beta = v / vv};
}

/// Least squares of the relative error with alpha >= 0 and beta >= 0. Points that lie far off the
/// others' line have no weight: up to half of them may. Starts from the least absolute errors, then
/// weighs each point by how far off it lies (Tukey's biweight), again and again.
Line fit_line(const std::vector<Point>& points) {
  constexpr double kFarOff = 4.685;  // standard deviations; keeps 95 % of the efficiency
  constexpr double kDeviationsPerMedian = 1.4826;  // of a normal distribution's absolute values
  constexpr double kSmallestDeviation = 1e-6;  // of data without noise
  constexpr int kRounds = 20;
  Line line = fit_least_absolute(points);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> errors;
    for (const Point& point : points) {
      errors.push_back(std::abs(relative_error(line, point)));
    }
    const double deviation = kDeviationsPerMedian * median(errors).value_or(0);
    const double limit = kFarOff * std::max(kSmallestDeviation, deviation);
    std::vector<double> weights;
    for (const double error : errors) {
      const double distance = std::min(error / limit, 1.0);
      weights.push_back((1 - distance * distance) * (1 - distance * distance));
    }
    const auto kept = std::ranges::count_if(weights, [](double weight) { return weight > 0; });
    const Line next = fit_least_squares(points, weights);
    if (static_cast<std::size_t>(kept) < kMinPoints || !std::isfinite(next.alpha) ||
        !std::isfinite(next.beta)) {
      break;
    }
    line = next;
  }
  return line;
}

struct Fit {
  std::vector<Line> lines;  // of each regime
  double sum_of_errors = std::numeric_limits<double>::infinity();
};

/// The best division of these sizes, ascending, into regimes; infinite errors if there are too few.
Fit best_fit(const std::vector<Point>& points, std::span<const std::int64_t> sizes,
             std::size_t regimes) {
  Fit best;
  if (regimes == 1) {
    std::vector<Point> part;
    std::ranges::copy_if(points, std::back_inserter(part), [&](const Point& point) {
      return point.bytes >= sizes.front() && point.bytes <= sizes.back();
    });
    best.lines = {fit_line(part)};
    best.lines[0].first_bytes = sizes.front();
    best.sum_of_errors = sum_of_relative_errors(best.lines[0], part);
    return best;
  }
  for (std::size_t cut = kMinSizesPerRegime;
       cut + kMinSizesPerRegime * (regimes - 1) <= sizes.size(); ++cut) {
    Fit fit = best_fit(points, sizes.first(cut), 1);
    const Fit rest = best_fit(points, sizes.subspan(cut), regimes - 1);
    fit.sum_of_errors += rest.sum_of_errors;
    append(fit.lines, rest.lines);
    if (fit.sum_of_errors < best.sum_of_errors) {
      best = fit;
    }
  }
  return best;
}

/// As few regimes as do nearly as well.
Fit choose(const std::vector<Point>& points, const std::vector<std::int64_t>& sizes,
           std::size_t max_regimes) {
  const auto count = static_cast<double>(points.size());
  Fit chosen = best_fit(points, sizes, 1);
  for (std::size_t regimes = 2; regimes <= max_regimes; ++regimes) {
    const Fit candidate = best_fit(points, sizes, regimes);
    if (is_clearly_less(candidate.sum_of_errors / count, chosen.sum_of_errors / count,
                        regimes - chosen.lines.size())) {
      chosen = candidate;
    }
  }
  return chosen;
}

/// Halfway, as the sizes are spaced, between the last size of one regime and the first of the next.
std::int64_t between(std::int64_t below, std::int64_t above) {
  return static_cast<std::int64_t>(
      std::ceil(std::sqrt(static_cast<double>(below) * static_cast<double>(above))));
}

/// |predicted / measured - 1|
double error_at(const CommunicationModel& model, const AllReduceSample& sample) {
  const std::optional<double> predicted_us =
      model.predict_us(static_cast<double>(sample.bytes), sample.world_size);
  return std::abs(predicted_us.value_or(std::nan("")) / *sample.time_us.median - 1);
}

struct Fitted {
  CommunicationModel model;
  double mean_error = 0;
};

/// @param usable of one backend and device, kMinPoints at least
Fitted fit_once(const std::optional<AllReduceAlgorithm>& algorithm,
                const std::vector<AllReduceSample>& usable) {
  std::vector<Point> points;
  std::set<std::int64_t> distinct_sizes;
  std::set<int> world_sizes;
  for (const AllReduceSample& sample : usable) {
    const Factors times = factors(algorithm, static_cast<double>(sample.bytes), sample.world_size);
    points.push_back(
        {sample.bytes, sample.world_size, times.alpha, times.beta_mib, *sample.time_us.median});
    distinct_sizes.insert(sample.bytes);
    world_sizes.insert(sample.world_size);
  }
  const std::vector<std::int64_t> sizes(distinct_sizes.begin(), distinct_sizes.end());
  const Fit chosen = choose(points, sizes, algorithm ? kMaxRegimes : 1);
  CommunicationModel model;
  model.backend = usable.front().backend;
  model.device = usable.front().device;
  model.algorithm = algorithm;
  model.world_sizes.assign(world_sizes.begin(), world_sizes.end());
  model.points = points.size();
  for (const Line& line : chosen.lines) {
    const auto first = distinct_sizes.find(line.first_bytes);
    model.regimes.push_back(
        {first == distinct_sizes.begin() ? 0 : between(*std::prev(first), *first), line.alpha,
         line.beta});
  }
  std::vector<double> errors;
  for (const AllReduceSample& sample : usable) {
    errors.push_back(error_at(model, sample));
  }
  model.median_relative_error = median(errors).value_or(std::nan(""));
  model.worst_relative_error = largest_or_zero(errors);
  return {model, chosen.sum_of_errors / static_cast<double>(points.size())};
}

std::optional<double> leave_one_out_error(const CommunicationModel& model,
                                          const std::vector<AllReduceSample>& usable) {
  constexpr std::size_t kMinWorldSizes = 3;  // two must remain to tell what their number does
  if (model.world_sizes.size() < kMinWorldSizes) {
    return std::nullopt;
  }
  double worst = 0;
  for (const int world_size : model.world_sizes) {
    std::vector<AllReduceSample> left_out;
    std::vector<AllReduceSample> others;
    std::ranges::partition_copy(
        usable, std::back_inserter(left_out), std::back_inserter(others),
        [&](const AllReduceSample& sample) { return sample.world_size == world_size; });
    if (others.size() < kMinPoints) {
      return std::nullopt;
    }
    const CommunicationModel rest = fit_once(model.algorithm, others).model;
    for (const AllReduceSample& sample : left_out) {
      worst = std::max(worst, error_at(rest, sample));
    }
  }
  return worst;
}

Fitted fit(const std::optional<AllReduceAlgorithm>& algorithm,
           const std::vector<AllReduceSample>& usable) {
  Fitted fitted = fit_once(algorithm, usable);
  fitted.model.leave_one_out_error = leave_one_out_error(fitted.model, usable);
  return fitted;
}

}  // namespace

std::optional<double> CommunicationModel::predict_us(double bytes, int world_size) const {
  if (world_size < 1 || !(bytes >= 0) || !std::isfinite(bytes) || regimes.empty()) {
    return std::nullopt;
  }
  const AlphaBetaRegime* regime = &regimes.front();
  for (const AlphaBetaRegime& next : regimes) {
    regime = static_cast<double>(next.from_bytes) <= bytes ? &next : regime;
  }
  if (world_size == 1) {
    return 0;
  }
  if (!algorithm && (world_sizes.empty() || world_sizes.front() != world_size)) {
    return std::nullopt;
  }
  const Factors times = factors(algorithm, bytes, world_size);
  return times.alpha * regime->alpha_us + times.beta_mib * regime->beta_us_per_mib;
}

std::vector<CommunicationModel> fit_communication_models(
    const std::vector<AllReduceSample>& samples) {
  std::vector<AllReduceSample> usable;
  std::set<int> world_sizes;
  for (const AllReduceSample& sample : samples) {
    const double time_us = sample.time_us.median.value_or(0);
    if (sample.world_size >= 2 && sample.bytes > 0 && std::isfinite(time_us) && time_us > 0) {
      usable.push_back(sample);
      world_sizes.insert(sample.world_size);
    }
  }
  if (usable.size() < kMinPoints) {
    return {};
  }
  if (world_sizes.size() == 1) {
    return {fit(std::nullopt, usable).model};
  }
  const Fitted ring = fit(AllReduceAlgorithm::kRing, usable);
  const Fitted tree = fit(AllReduceAlgorithm::kTree, usable);
  if (is_clearly_less(ring.mean_error, tree.mean_error)) {
    return {ring.model};
  }
  if (is_clearly_less(tree.mean_error, ring.mean_error)) {
    return {tree.model};
  }
  return ring.mean_error <= tree.mean_error ? std::vector{ring.model, tree.model}
                                            : std::vector{tree.model, ring.model};
}

Network parse_network(const std::string& name, const std::string& text) {
  constexpr double kMaxAlphaUs = 1e7;
  constexpr double kMaxGbps = 1e6;
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) {
    refuse("{}: expected ALPHA_US,GBPS, as in 2.5,25, got \"{}\"", name, text);
  }
  return {parse_positive(name, text.substr(0, comma), kMaxAlphaUs),
          parse_positive(name, text.substr(comma + 1), kMaxGbps)};
}

CommunicationModel stated_model(const Network& network, AllReduceAlgorithm algorithm) {
  CommunicationModel model;
  model.algorithm = algorithm;
  model.regimes = {{0, network.alpha_us, kMib / (network.gbps * 1e9) * 1e6}};
  return model;
}

std::optional<double> all_reduces_ms(const CommunicationModel& model,
                                     const std::vector<double>& bucket_bytes, int world_size) {
  if (bucket_bytes.empty()) {
    return std::nullopt;
  }
  double total_us = 0;
  for (const double bytes : bucket_bytes) {
    const std::optional<double> time_us = model.predict_us(bytes, world_size);
    if (!time_us) {
      return std::nullopt;
    }
    total_us += *time_us;
  }
  return total_us / 1e3;
}

}  // namespace ddp::bench
