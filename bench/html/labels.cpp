#include "bench/html/labels.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ddp::bench::html {
namespace {

/// Labels that touch. The first stands where their wishes, each less its place in line, average.
struct Cluster {
  double wishes = 0;
  std::size_t count = 0;
  double size() const { return static_cast<double>(count); }
  double start() const { return wishes / size(); }
};

}  // namespace

std::vector<double> spread_labels(const std::vector<double>& wanted, double gap, double top,
                                  double bottom) {
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  std::vector<Cluster> clusters;
  for (const std::size_t label : order) {
    clusters.push_back({wanted[label], 1});
    while (clusters.size() > 1) {
      Cluster& before = clusters[clusters.size() - 2];
      const Cluster last = clusters.back();
      if (before.start() + before.size() * gap <= last.start()) {
        break;
      }
      before.wishes += last.wishes - last.size() * before.size() * gap;
      before.count += last.count;
      clusters.pop_back();
    }
  }
  std::vector<double> positions;
  positions.reserve(wanted.size());
  for (const Cluster& cluster : clusters) {
    for (std::size_t i = 0; i < cluster.count; ++i) {
      positions.push_back(cluster.start() + static_cast<double>(i) * gap);
    }
  }
  double limit = bottom;
  for (auto position = positions.rbegin(); position != positions.rend(); ++position) {
    *position = std::min(*position, limit);
    limit = *position - gap;
  }
  limit = top;
  for (double& position : positions) {
    position = std::max(position, limit);
    limit = position + gap;
  }
  std::vector<double> result(wanted.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    result[order[i]] = positions[i];
  }
  return result;
}

}  // namespace ddp::bench::html
