#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "bench/html/line_plot.hpp"
#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

/// What one run is predicted to become on more ranks.
struct Projection {
  const Run* from;
  std::string algorithm;
  std::vector<const Extrapolation*> steps;  ///< ascending in world size
};

std::vector<Projection> find_projections(const Document& document) {
  std::vector<Projection> projections;
  for (const Extrapolation& extrapolation : document.extrapolations) {
    const Run* const from = document.find(extrapolation.from);
    if (from == nullptr || !from->has_speed() || extrapolation.world_size == 0) {
      continue;
    }
    auto known =
        std::find_if(projections.begin(), projections.end(), [&](const Projection& projection) {
          return projection.from == from && projection.algorithm == extrapolation.algorithm;
        });
    if (known == projections.end()) {
      known = projections.insert(projections.end(), {from, extrapolation.algorithm, {}});
    }
    known->steps.push_back(&extrapolation);
  }
  for (Projection& projection : projections) {
    std::stable_sort(projection.steps.begin(), projection.steps.end(),
                     [](const Extrapolation* a, const Extrapolation* b) {
                       return a->world_size < b->world_size;
                     });
  }
  return projections;
}

CurvePoint point(int world_size, Number value, const std::string& tooltip) {
  return {static_cast<double>(world_size),
          value.value_or(std::numeric_limits<double>::quiet_NaN()),
          {},
          {},
          tooltip};
}

/// The measured points of the series, and from its last one on the predicted ones, dashed.
void add_curves(const Material& material, const Group& group, const Projection& projection,
                bool efficiency, bool has_measured, LinePlot& plot) {
  const Series& series = material.series.of(*projection.from);
  Curve measured;
  measured.hue = series.hue;
  measured.marker = series.marker;
  measured.hollow = series.hollow;
  measured.line_class = "dash-0";
  for (const Run* run : group.runs) {
    if (run->has_speed() && run->world_size > 0 && &material.series.of(*run) == &series) {
      const Number value = efficiency ? run->efficiency : run->step_ms.median;
      measured.points.push_back(
          point(run->world_size, value,
                series.full_name + ", " + ranks(run->world_size) + ", measured: " + show(value)));
    }
  }
  std::stable_sort(measured.points.begin(), measured.points.end(),
                   [](const CurvePoint& a, const CurvePoint& b) { return a.x < b.x; });

  Curve predicted = measured;
  predicted.label = series.label + (projection.algorithm.empty() ? "" : " " + projection.algorithm);
  predicted.hollow = true;
  predicted.line_class = projection.algorithm == "tree" ? "dash-2" : "dash-1";
  predicted.points = {point(
      projection.from->world_size,
      efficiency ? projection.from->efficiency : projection.from->step_ms.median, "measured")};
  for (const Extrapolation* step : projection.steps) {
    const Number value = efficiency ? step->efficiency : step->step_ms;
    predicted.points.push_back(
        point(step->world_size, value,
              predicted.label + ", " + ranks(step->world_size) + ", predicted: " + show(value)));
  }
  plot.curves.push_back(std::move(predicted));
  if (!has_measured) {
    plot.curves.push_back(std::move(measured));
  }
}

std::string panel(const Material& material, const Group& group,
                  const std::vector<Projection>& projections, bool efficiency) {
  LinePlot plot;
  const std::string quantity = efficiency ? "efficiency" : "step time";
  plot.description = "Predicted " + quantity + " on more ranks, " + group.title();
  plot.x_title = "ranks";
  plot.y_title = efficiency ? "efficiency" : "step time, ms";
  plot.y_scale = efficiency ? YScale::kFromZero : YScale::kLogarithmic;
  std::vector<const Series*> drawn;
  for (const Projection& projection : projections) {
    if (projection.from->model == group.model && projection.from->scaling == group.scaling) {
      const Series* const series = &material.series.of(*projection.from);
      const bool known = std::find(drawn.begin(), drawn.end(), series) != drawn.end();
      add_curves(material, group, projection, efficiency, known, plot);
      drawn.push_back(series);
    }
  }
  if (drawn.empty()) {
    return "";
  }
  if (efficiency) {
    plot.y_values.push_back(1);
  }
  return figure(group.title(), draw(plot), quantity);
}

std::string numbers(const Material& material, const std::vector<Projection>& projections) {
  Table table("The numbers: predicted for more ranks",
              {{"from", false}, {"algorithm", false}, {"ranks"}, {"step, ms"}, {"efficiency"}});
  for (const Group& group : material.groups) {
    bool any = false;
    for (const Projection& projection : projections) {
      if (projection.from->model != group.model || projection.from->scaling != group.scaling) {
        continue;
      }
      if (!any) {
        table.begin_group(group.title());
        any = true;
      }
      for (const Extrapolation* step : projection.steps) {
        table.add({
            text_cell(material.series.of(*projection.from).full_name + ", " +
                      ranks(projection.from->world_size)),
            text_cell(projection.algorithm),
            number_cell(step->world_size, show_count(step->world_size)),
            number_cell(step->step_ms, show(step->step_ms)),
            number_cell(step->efficiency, show_efficiency(step->efficiency)),
        });
      }
    }
  }
  return table.details();
}

}  // namespace

Section extrapolation_section(const Material& material) {
  const std::vector<Projection> projections = find_projections(material.document);
  std::vector<std::string> panels;
  for (const Group& group : material.groups) {
    panels.push_back(panel(material, group, projections, false));
    panels.push_back(panel(material, group, projections, true));
  }
  const std::string drawn = figures(panels);
  std::string assumptions;
  for (const std::string& assumption : material.document.assumptions) {
    assumptions += "<li>" + escape(assumption) + "</li>";
  }
  if (drawn.empty()) {
    return {"extrapolation", "On more ranks", ""};
  }
  std::string note = paragraph(
      "Filled points are measured. Dashed lines with open points are <b>not measured</b>: they "
      "are what the fitted models say of more ranks than there are here." +
      std::string(assumptions.empty() ? "" : " They assume:"));
  note += assumptions.empty() ? "" : "<ul>" + assumptions + "</ul>";
  return {"extrapolation", "On more ranks", note + drawn + numbers(material, projections)};
}

}  // namespace ddp::bench::html
