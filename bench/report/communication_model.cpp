#include "bench/report/communication_model.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "bench/report/relative_fit.hpp"

namespace ddp::bench {
namespace {

constexpr double kMib = 1024.0 * 1024.0;
constexpr std::size_t kMinSizesPerRegime = 3;
constexpr std::size_t kMaxRegimes = 3;

/// By how much one more regime must lower the mean relative error: noise alone lets it fall a
/// little with every number that is fitted.
constexpr double kClearFactor = 0.6;
constexpr double kClearDifference = 0.01;

/// What alpha and beta are multiplied with.
struct Factors {
  double alpha = 0;
  double beta_mib = 0;
};

Factors factors(AllReduceAlgorithm algorithm, double bytes, int world_size) {
  const double ranks = world_size;
  if (algorithm == AllReduceAlgorithm::kRing) {
    return {2 * (ranks - 1), 2 * (ranks - 1) / ranks * bytes / kMib};
  }
  return {2 * std::log2(ranks), 2 * bytes / kMib};
}

struct SizedPoint {
  std::int64_t bytes = 0;
  FitPoint point;
};

struct Fit {
  std::vector<std::int64_t> first_sizes;  // of each regime
  std::vector<FitLine> lines;
  double sum_of_errors = std::numeric_limits<double>::infinity();
};

/// The points from size `begin` up to before size `end`, both indices into the sampled sizes.
class Segments {
 public:
  explicit Segments(std::vector<SizedPoint> points) : points_(std::move(points)) {
    std::set<std::int64_t> distinct;
    for (const SizedPoint& point : points_) {
      distinct.insert(point.bytes);
    }
    sizes_.assign(distinct.begin(), distinct.end());
    cache_.resize(sizes_.size() * (sizes_.size() + 1));
  }

  std::size_t point_count() const { return points_.size(); }
  const std::vector<std::int64_t>& sizes() const { return sizes_; }

  /// The best division of the sizes from `begin` on into `regimes`; infinite errors if there are
  /// too few.
  Fit best(std::size_t begin, std::size_t regimes) {
    const std::size_t end = sizes_.size();
    if (regimes == 1) {
      return segment(begin, end);
    }
    Fit result;
    for (std::size_t cut = begin + kMinSizesPerRegime;
         cut + kMinSizesPerRegime * (regimes - 1) <= end; ++cut) {
      const Fit& left = segment(begin, cut);
      Fit right = best(cut, regimes - 1);
      if (left.sum_of_errors + right.sum_of_errors < result.sum_of_errors) {
        result.sum_of_errors = left.sum_of_errors + right.sum_of_errors;
        result.first_sizes = left.first_sizes;
        result.lines = left.lines;
        result.first_sizes.insert(result.first_sizes.end(), right.first_sizes.begin(),
                                  right.first_sizes.end());
        result.lines.insert(result.lines.end(), right.lines.begin(), right.lines.end());
      }
    }
    return result;
  }

 private:
  const Fit& segment(std::size_t begin, std::size_t end) {
    Fit& known = cache_[begin * (sizes_.size() + 1) + end];
    if (known.lines.empty()) {
      std::vector<FitPoint> part;
      for (const SizedPoint& point : points_) {
        if (point.bytes >= sizes_[begin] && point.bytes <= sizes_[end - 1]) {
          part.push_back(point.point);
        }
      }
      const FitLine line = fit_relative(part);
      known = {{sizes_[begin]}, {line}, sum_of_relative_errors(line, part)};
    }
    return known;
  }

  std::vector<SizedPoint> points_;
  std::vector<std::int64_t> sizes_;
  std::vector<Fit> cache_;  // by begin and end
};

/// As few regimes as do nearly as well.
Fit choose(Segments& segments) {
  const auto points = static_cast<double>(segments.point_count());
  Fit chosen = segments.best(0, 1);
  std::size_t chosen_regimes = 1;
  for (std::size_t regimes = 2; regimes <= kMaxRegimes; ++regimes) {
    const Fit candidate = segments.best(0, regimes);
    const auto more = static_cast<double>(regimes - chosen_regimes);
    const double before = chosen.sum_of_errors / points;
    const double after = candidate.sum_of_errors / points;
    if (after <= before * std::pow(kClearFactor, more) && before - after >= kClearDifference) {
      chosen = candidate;
      chosen_regimes = regimes;
    }
  }
  return chosen;
}

/// Halfway, as the sizes are spaced, between the last size of one regime and the first of the next.
std::int64_t between(std::int64_t below, std::int64_t above) {
  return static_cast<std::int64_t>(
      std::ceil(std::sqrt(static_cast<double>(below) * static_cast<double>(above))));
}

}  // namespace

const char* to_string(AllReduceAlgorithm algorithm) {
  return algorithm == AllReduceAlgorithm::kRing ? "ring" : "tree";
}

std::optional<double> CommunicationModel::predict_us(double bytes, int world_size) const {
  if (world_size < 1 || !(bytes >= 0) || !std::isfinite(bytes) || regimes.empty()) {
    return std::nullopt;
  }
  const AlphaBetaRegime* regime = &regimes.front();
  for (const AlphaBetaRegime& next : regimes) {
    regime = static_cast<double>(next.from_bytes) <= bytes ? &next : regime;
  }
  const Factors times = factors(algorithm, bytes, world_size);
  return world_size == 1
             ? 0
             : times.alpha * regime->alpha_us + times.beta_mib * regime->beta_us_per_mib;
}

std::optional<CommunicationModel> fit_communication_model(
    const std::string& backend, const std::string& device, AllReduceAlgorithm algorithm,
    const std::vector<AllReduceSample>& samples) {
  std::vector<AllReduceSample> usable;
  std::vector<SizedPoint> points;
  std::set<int> world_sizes;
  for (const AllReduceSample& sample : samples) {
    const double time_us = sample.time_us.median.value_or(0);
    if (sample.backend != backend || sample.device != device || sample.world_size < 2 ||
        sample.bytes <= 0 || !std::isfinite(time_us) || !(time_us > 0)) {
      continue;
    }
    const Factors times = factors(algorithm, static_cast<double>(sample.bytes), sample.world_size);
    points.push_back({sample.bytes, {times.alpha, times.beta_mib, time_us}});
    usable.push_back(sample);
    world_sizes.insert(sample.world_size);
  }
  if (points.size() < kMinFitPoints) {
    return std::nullopt;
  }
  Segments segments(std::move(points));
  const Fit fit = choose(segments);

  CommunicationModel model;
  model.backend = backend;
  model.device = device;
  model.algorithm = algorithm;
  model.world_sizes.assign(world_sizes.begin(), world_sizes.end());
  model.points = usable.size();
  for (std::size_t i = 0; i < fit.lines.size(); ++i) {
    const auto& sizes = segments.sizes();
    const auto first = std::find(sizes.begin(), sizes.end(), fit.first_sizes[i]);
    model.regimes.push_back(
        {i == 0 ? 0 : between(*(first - 1), *first), fit.lines[i].alpha, fit.lines[i].beta});
  }
  std::vector<double> errors;
  for (const AllReduceSample& sample : usable) {
    const std::optional<double> predicted_us =
        model.predict_us(static_cast<double>(sample.bytes), sample.world_size);
    errors.push_back(
        std::abs(predicted_us.value_or(std::nan("")) / sample.time_us.median.value_or(0) - 1));
  }
  model.median_relative_error = median(errors).value_or(std::nan(""));
  return model;
}

}  // namespace ddp::bench
