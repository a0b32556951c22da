// Step time, speed-up and efficiency: the same panels with another quantity on the y axis.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "bench/html/line_plot.hpp"
#include "bench/html/sections.hpp"
#include "bench/report/conclusions.hpp"

namespace ddp::bench::html {
namespace {

struct Quantity {
  std::string name;  ///< "Step time"
  std::string y_title;
  YScale y_scale;
  bool has_spread;
  CurvePoint (*point)(const Run& run, const Group& group);  ///< y is NaN for no value
  std::vector<Guide> (*guides)(const Group& group, const std::vector<int>& counts);
};

constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

std::vector<int> counts_of(const Group& group) {
  std::set<int> counts;
  for (const Run* run : group.runs) {
    if (run->has_speed() && run->world_size > 0) {
      counts.insert(run->world_size);
    }
  }
  return {counts.begin(), counts.end()};
}

LinePlot make_plot(const Material& material, const Group& group, const Quantity& quantity) {
  LinePlot plot;
  plot.description = quantity.name + " by number of ranks, " + group.title();
  plot.x_title = "ranks";
  plot.y_title = quantity.y_title;
  plot.y_scale = quantity.y_scale;
  plot.spread = quantity.has_spread;
  std::map<std::size_t, Curve> curves;  // by series, so that the order is that of the key
  for (const Run* run : group.runs) {
    if (!run->has_speed() || run->world_size == 0) {
      continue;
    }
    const Series& series = material.series.of(*run);
    Curve& curve = curves[series.index];
    curve.label = series.label;
    curve.hue = series.hue;
    curve.marker = series.marker;
    curve.hollow = series.hollow;
    curve.line_class = series.dash_class();
    CurvePoint point = quantity.point(*run, group);
    point.x = run->world_size;
    point.tooltip = series.full_name + ", " + ranks(run->world_size) + ": " + point.tooltip;
    curve.points.push_back(std::move(point));
  }
  for (auto& [index, curve] : curves) {
    std::stable_sort(curve.points.begin(), curve.points.end(),
                     [](const CurvePoint& a, const CurvePoint& b) { return a.x < b.x; });
    plot.curves.push_back(std::move(curve));
  }
  plot.guides = quantity.guides(group, counts_of(group));
  return plot;
}

std::string panels(const Material& material, const Quantity& quantity) {
  std::vector<std::string> all;
  for (const Group& group : material.groups) {
    all.push_back(figure(group.title(), draw(make_plot(material, group, quantity))));
  }
  return figures(all);
}

std::vector<CurvePoint> over_counts(const std::vector<int>& counts, double at_one,
                                    double exponent) {
  std::vector<CurvePoint> points;
  points.reserve(counts.size());
  for (const int count : counts) {
    points.push_back({static_cast<double>(count), at_one * std::pow(count, exponent), {}, {}, ""});
  }
  return points;
}

CurvePoint step_time(const Run& run, const Group& /*group*/) {
  const Distribution& step_ms = run.step_ms;
  std::string tooltip = with_unit(show(step_ms.median), "ms");
  if (step_ms.p10 && step_ms.p90) {
    tooltip += " (p10 " + show(step_ms.p10) + ", p90 " + show(step_ms.p90) + ")";
  }
  return {0, step_ms.median.value_or(kNoValue), step_ms.p10, step_ms.p90, tooltip};
}

std::vector<Guide> ideal_step_time(const Group& group, const std::vector<int>& counts) {
  const Run* const base = group.baseline();
  if (base == nullptr || counts.size() < 2 ||
      (group.scaling != "weak" && group.scaling != "strong")) {
    return {};
  }
  const double exponent = group.scaling == "weak" ? 0 : -1;
  return {{"ideal", over_counts(counts, *base->step_ms.median, exponent)}};
}

CurvePoint speedup(const Run& run, const Group& group) {
  const Number value = speedup_of(run, group);
  return {0, value.value_or(kNoValue), {}, {}, show_factor(value) + " one process"};
}

std::vector<Guide> ideal_speedup(const Group& /*group*/, const std::vector<int>& counts) {
  if (counts.size() < 2) {
    return {};
  }
  return {{"ideal", over_counts(counts, 1, 1)}, {"one process", over_counts(counts, 1, 0)}};
}

CurvePoint efficiency(const Run& run, const Group& /*group*/) {
  return {0, run.efficiency.value_or(kNoValue), {}, {}, show_efficiency(run.efficiency)};
}

std::vector<Guide> ideal_efficiency(const Group& /*group*/, const std::vector<int>& counts) {
  if (counts.size() < 2) {
    return {};
  }
  return {{"ideal", over_counts(counts, 1, 0)}};
}

std::string numbers(const Material& material, const std::string& caption,
                    const std::vector<Column>& columns,
                    std::vector<Cell> (*cells)(const Run& run, const Group& group)) {
  std::vector<Column> all = {{"configuration", false}, {"ranks"}};
  all.insert(all.end(), columns.begin(), columns.end());
  Table table(caption, all);
  for (const Group& group : material.groups) {
    const bool any = std::any_of(group.runs.begin(), group.runs.end(),
                                 [](const Run* run) { return run->has_speed(); });
    if (any) {
      table.begin_group(group.title());
    }
    for (const Run* run : group.runs) {
      if (!run->has_speed()) {
        continue;
      }
      std::vector<Cell> row = {text_cell(material.series.of(*run).full_name),
                               number_cell(run->world_size, show_count(run->world_size))};
      for (Cell& cell : cells(*run, group)) {
        row.push_back(std::move(cell));
      }
      table.add(std::move(row));
    }
  }
  return table.details();
}

Section section(const std::string& id, const std::string& title, const std::string& note,
                const std::string& panels, const std::string& numbers) {
  return {id, title, panels.empty() ? "" : paragraph(note) + panels + numbers};
}

}  // namespace

Section step_time_section(const Material& material) {
  const Quantity quantity = {"Step time", "step time, ms", YScale::kLogarithmic,
                             true,        step_time,       ideal_step_time};
  return section(
      "step-time", "Step time by number of ranks",
      "Medians, with whiskers from the 10th to the 90th percentile; logarithmic. Points of the "
      "same number of ranks stand side by side. <i>Ideal</i> keeps the step of one process in weak "
      "scaling, where every rank has a batch of its own, and divides it by the ranks in strong "
      "scaling, where all share one." +
          material.series.key(),
      panels(material, quantity),
      numbers(material, "The numbers: step time, ms",
              {{"median"}, {"p10"}, {"p90"}, {"p95"}, {"steps"}},
              [](const Run& run, const Group& /*group*/) -> std::vector<Cell> {
                const Distribution& step_ms = run.step_ms;
                const Number n =
                    step_ms.n > 0 ? Number(static_cast<double>(step_ms.n)) : std::nullopt;
                return {number_cell(step_ms.median, show(step_ms.median)),
                        number_cell(step_ms.p10, show(step_ms.p10)),
                        number_cell(step_ms.p90, show(step_ms.p90)),
                        number_cell(step_ms.p95, show(step_ms.p95)), number_cell(n, show_count(n))};
              }));
}

Section speedup_section(const Material& material) {
  const Quantity quantity = {"Speed-up",
                             "samples per second, relative to one process",
                             YScale::kLogarithmic,
                             false,
                             speedup,
                             ideal_speedup};
  return section(
      "speed-up", "Speed-up against ideal",
      "Samples per second relative to one process on the same workload; logarithmic on both axes. "
      "Below the line <i>one process</i> the additional ranks cost more than they give.",
      panels(material, quantity),
      numbers(material, "The numbers: speed-up", {{"samples/s"}, {"vs one process"}},
              [](const Run& run, const Group& group) -> std::vector<Cell> {
                const Number value = speedup_of(run, group);
                return {number_cell(run.samples_per_second, show_count(run.samples_per_second)),
                        number_cell(value, show_factor(value))};
              }));
}

Section efficiency_section(const Material& material) {
  const Quantity quantity = {"Efficiency", "efficiency", YScale::kFromZero,
                             false,        efficiency,   ideal_efficiency};
  return section(
      "efficiency", "Efficiency",
      "Speed-up divided by the number of ranks: for weak scaling the step of one process over that "
      "of many, for strong scaling the share of the ranks that is not wasted. From " +
          show_fixed(kScaledEfficiency, 1) + " on, a configuration is said to scale.",
      panels(material, quantity),
      numbers(material, "The numbers: efficiency", {{"efficiency"}},
              [](const Run& run, const Group& /*group*/) -> std::vector<Cell> {
                return {number_cell(run.efficiency, show_efficiency(run.efficiency))};
              }));
}

}  // namespace ddp::bench::html
