#include "bench/report/crossover.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "bench/report/catalog.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kMinValues = 3;  // two make no curve

/// Layers of equal width between input and output: "64-W-W-10@32". Empty for others.
std::string width_sweep(const Workload& workload) {
  const std::vector<std::int64_t>& layers = workload.layers;
  if (layers.size() < 3 || std::any_of(layers.begin() + 1, layers.end() - 1,
                                       [&](std::int64_t width) { return width != layers[1]; })) {
    return "";
  }
  std::string text = std::to_string(layers.front());
  for (std::size_t i = 2; i < layers.size(); ++i) {
    text += "-W";
  }
  return fmt::format("{}-{}@{}", text, layers.back(), workload.batch);
}

CrossoverValue value_of(const Report& report, const Run& run, std::int64_t value) {
  CrossoverValue result = {.value = value, .run = run.name};
  const Run* const baseline = report.baseline_of(run);
  if (const auto speed = baseline ? speed_ratio(report, run, *baseline) : std::nullopt) {
    result.speedup = speed->ratio;
    result.ci95 = speed->ci95;
  }
  return result;
}

/// Where the last line from below 1 to above goes through 1, on logarithmic axes.
std::optional<double> crossing_of(const std::vector<CrossoverValue>& values) {
  std::vector<std::pair<double, double>> points;  // logarithms
  for (const CrossoverValue& value : values) {
    if (value.speedup) {
      points.emplace_back(std::log(static_cast<double>(value.value)), std::log(*value.speedup));
    }
  }
  const auto last_loss =
      std::find_if(points.rbegin(), points.rend(), [](const auto& p) { return p.second < 0; });
  if (last_loss == points.rend() || last_loss == points.rbegin()) {
    return std::nullopt;
  }
  const auto& [x0, y0] = *last_loss;
  const auto& [x1, y1] = *(last_loss - 1);
  return std::exp(x0 - y0 * (x1 - x0) / (y1 - y0));
}

}  // namespace

std::vector<Crossover> find_crossovers(const Report& report) {
  // By what else the name of a run says, the axis and what stays the same.
  std::map<std::tuple<std::string, std::string, std::string>, Crossover> sweeps;
  for (const Run& run : report.runs) {
    const std::size_t batch_begin = run.model.find('@');
    const Workload* const workload = find_workload(run.model);
    if (batch_begin == std::string::npos || workload == nullptr || run.kind != "stage" ||
        run.stage != kDistributed || run.variant != "main" || !run.several_processes()) {
      continue;
    }
    const auto add = [&](const std::string& axis, const std::string& sweep, std::int64_t value) {
      Crossover& crossover = sweeps[{run.name.substr(run.name.find('/')), axis, sweep}];
      crossover.axis = axis;
      crossover.sweep = sweep;
      crossover.world_size = run.world_size;
      crossover.values.push_back(value_of(report, run, value));
    };
    if (const std::string sweep = width_sweep(*workload); !sweep.empty()) {
      add("width", sweep, workload->layers[1]);
    }
    add("batch", run.model.substr(0, batch_begin) + "@B", workload->batch);
  }
  std::vector<Crossover> crossovers;
  for (auto& [key, crossover] : sweeps) {
    if (crossover.values.size() >= kMinValues) {
      std::ranges::sort(crossover.values, {}, &CrossoverValue::value);
      crossover.crosses_at = crossing_of(crossover.values);
      crossovers.push_back(std::move(crossover));
    }
  }
  return crossovers;
}

}  // namespace ddp::bench
