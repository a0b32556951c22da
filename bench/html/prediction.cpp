#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "bench/html/line_plot.hpp"
#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

constexpr std::size_t kMaxWorst = 9;

bool is_predicted(const Run& run) {
  return run.has_speed() && !run.is_control() && run.predicted_step_ms &&
         *run.predicted_step_ms > 0 && *run.step_ms.median > 0;
}

Number residual_of(const Run& run) {
  return run.prediction.residual ? run.prediction.residual
                                 : Number(*run.step_ms.median / *run.predicted_step_ms - 1);
}

std::string place(const Run& run) {
  return run.model + (run.scaling.empty() ? "" : " " + run.scaling);
}

std::string residual_plot(const Material& material, const std::vector<const Run*>& runs) {
  LinePlot plot;
  plot.description = "Residual of each configuration over its predicted step time";
  plot.x_title = "predicted step, ms";
  plot.y_title = "residual, %";
  plot.x_scale = XScale::kLogarithmic;
  plot.y_scale = YScale::kLinear;
  std::map<std::size_t, Curve> curves;
  double low_ms = *runs.front()->predicted_step_ms;
  double high_ms = low_ms;
  for (const Run* run : runs) {
    const Series& series = material.series.of(*run);
    Curve& curve = curves[series.index];
    curve.hue = series.hue;
    curve.marker = series.marker;
    curve.hollow = series.hollow;
    const double predicted_ms = *run->predicted_step_ms;
    const Number residual = residual_of(*run);
    curve.points.push_back({predicted_ms,
                            100 * *residual,
                            {},
                            {},
                            place(*run) + ", " + material.series.row_label(*run) + ": " +
                                show(run->step_ms.median) + " ms, predicted " + show(predicted_ms) +
                                " ms, " + show_signed_percent(residual)});
    low_ms = std::min(low_ms, predicted_ms);
    high_ms = std::max(high_ms, predicted_ms);
  }
  for (auto& [index, curve] : curves) {
    plot.curves.push_back(std::move(curve));
  }
  for (const auto& [percent, label] :
       {std::pair(20.0, "+20 %"), std::pair(0.0, "as predicted"), std::pair(-20.0, "−20 %")}) {
    plot.guides.push_back({label, {{low_ms, percent, {}, {}, ""}, {high_ms, percent, {}, {}, ""}}});
  }
  return figure("Every configuration", draw(plot), "colours and markers as above");
}

std::vector<Cell> residual_row(const Run& run, const std::string& name, bool all) {
  std::vector<Cell> cells = {
      text_cell(name),
      number_cell(run.step_ms.median, show(run.step_ms.median)),
      number_cell(run.predicted_step_ms, show(run.predicted_step_ms)),
      number_cell(residual_of(run), show_signed_percent(residual_of(run))),
  };
  if (all) {
    for (const Number ms : {run.prediction.compute_ms, run.prediction.comm_ms,
                            run.prediction.ring_step_ms, run.prediction.tree_step_ms}) {
      cells.push_back(number_cell(ms, show(ms)));
    }
    cells.push_back(text_cell(run.prediction.algorithm));
  }
  return cells;
}

std::string worst_table(const Material& material, std::vector<const Run*> runs) {
  std::stable_sort(runs.begin(), runs.end(), [](const Run* a, const Run* b) {
    return std::abs(*residual_of(*a)) > std::abs(*residual_of(*b));
  });
  runs.resize(std::min(runs.size(), kMaxWorst));
  Table table("Furthest from the prediction",
              {{"configuration", false}, {"measured, ms"}, {"predicted, ms"}, {"residual"}});
  for (const Run* run : runs) {
    table.add(residual_row(*run, place(*run) + ", " + material.series.row_label(*run), false));
  }
  return table.html();
}

std::string all_residuals(const Material& material, const std::vector<const Run*>& runs) {
  Table table("The numbers: measured, predicted, residual, ms", {{"configuration", false},
                                                                 {"measured"},
                                                                 {"predicted"},
                                                                 {"residual"},
                                                                 {"compute"},
                                                                 {"communication"},
                                                                 {"step, ring"},
                                                                 {"step, tree"},
                                                                 {"algorithm", false}});
  for (const Group& group : material.groups) {
    table.begin_group(group.title());
    for (const Run* run : runs) {
      if (run->model == group.model && run->scaling == group.scaling) {
        table.add(residual_row(
            *run, material.series.of(*run).full_name + ", " + ranks(run->world_size), true));
      }
    }
  }
  return table.details();
}

std::string limits(const Document& document) {
  Table table("The numbers: what the machine can do, per rank",
              {{"device", false}, {"ranks busy"}, {"fp32, GFLOP/s"}, {"memory, GB/s"}});
  for (const Limit& limit : document.limits) {
    table.add({
        text_cell(limit.device),
        number_cell(limit.world_size, show_count(limit.world_size)),
        number_cell(limit.fp32_gflops, show(limit.fp32_gflops)),
        number_cell(limit.memory_bandwidth_gbps, show(limit.memory_bandwidth_gbps)),
    });
  }
  return table.details();
}

std::string micro(const Document& document) {
  Table table("The numbers: parts measured alone",
              {{"part", false}, {"median, µs"}, {"p10 – p90"}, {"bytes"}, {"GB/s"}});
  for (const Micro& part : document.micro) {
    const Distribution& time_us = part.time_us;
    table.add({
        text_cell(part.name),
        number_cell(time_us.median, show(time_us.median)),
        number_cell(std::nullopt, time_us.p10 && time_us.p90
                                      ? show(time_us.p10) + " – " + show(time_us.p90)
                                      : kNothing),
        number_cell(part.bytes, show_count(part.bytes)),
        number_cell(part.bandwidth_gbps, show(part.bandwidth_gbps)),
    });
  }
  return table.details();
}

}  // namespace

Section prediction_section(const Material& material) {
  std::vector<const Run*> runs;
  for (const Run& run : material.document.runs) {
    if (is_predicted(run)) {
      runs.push_back(&run);
    }
  }
  const std::string further = limits(material.document) + micro(material.document);
  if (runs.empty()) {
    return {"prediction", "Measured against predicted", further};
  }
  const std::string note = paragraph(
      "The prediction adds what the fitted model of the backend says an all-reduce costs to what "
      "the step costs without one. Residual: measured over predicted, less one; what lies above "
      "the middle line is slower than the model can explain.");
  return {"prediction", "Measured against predicted",
          note + figures({residual_plot(material, runs), worst_table(material, runs)}) +
              all_residuals(material, runs) + further};
}

}  // namespace ddp::bench::html
