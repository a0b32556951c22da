#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "bench/html/line_plot.hpp"
#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

constexpr int kPointsPerRegime = 24;
constexpr double kBytesPerMib = 1024.0 * 1024.0;
constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

/// What the fitted model says; bytes in one all-reduce, n ranks.
double model_time_us(const std::string& algorithm, const Regime& regime, double bytes, int n) {
  const double mib = bytes / kBytesPerMib;
  if (algorithm == "tree") {
    return 2 * std::log2(n) * regime.alpha_us + 2 * mib * regime.beta_us_per_mib;
  }
  return 2.0 * (n - 1) * regime.alpha_us + 2.0 * (n - 1) / n * mib * regime.beta_us_per_mib;
}

/// As nccl-tests counts it: what each link would carry in a ring.
double bus_bandwidth_gbps(double bytes, double time_us, int n) {
  return bytes / time_us * 1e-3 * 2.0 * (n - 1) / n;
}

/// Backends in order of appearance: their place is their colour.
std::size_t backend_index(const Document& document, const std::string& backend) {
  std::vector<std::string> known;
  for (const AllReduce& sample : document.all_reduce) {
    if (std::find(known.begin(), known.end(), sample.backend) == known.end()) {
      known.push_back(sample.backend);
    }
  }
  return static_cast<std::size_t>(std::find(known.begin(), known.end(), backend) - known.begin());
}

/// Of the models of one backend that fits best.
const CommunicationModel* best_model(const Document& document, const std::string& backend,
                                     const std::string& device) {
  const CommunicationModel* best = nullptr;
  for (const CommunicationModel& model : document.communication_models) {
    constexpr double kWorst = std::numeric_limits<double>::infinity();
    if (model.backend == backend && model.device == device && !model.regimes.empty() &&
        (best == nullptr || model.median_relative_error.value_or(kWorst) <
                                best->median_relative_error.value_or(kWorst))) {
      best = &model;
    }
  }
  return best;
}

/// One panel: a device and a number of ranks.
struct Panel {
  std::string device;
  int world_size;
  std::vector<std::string> backends;
};

std::vector<Panel> find_panels(const Document& document) {
  std::vector<Panel> panels;
  for (const AllReduce& sample : document.all_reduce) {
    if (sample.world_size < 2) {
      continue;
    }
    auto panel = std::find_if(panels.begin(), panels.end(), [&](const Panel& known) {
      return known.device == sample.device && known.world_size == sample.world_size;
    });
    if (panel == panels.end()) {
      panel = panels.insert(panels.end(), {sample.device, sample.world_size, {}});
    }
    if (std::find(panel->backends.begin(), panel->backends.end(), sample.backend) ==
        panel->backends.end()) {
      panel->backends.push_back(sample.backend);
    }
  }
  std::stable_sort(panels.begin(), panels.end(), [](const Panel& a, const Panel& b) {
    return std::tie(a.device, a.world_size) < std::tie(b.device, b.world_size);
  });
  return panels;
}

Curve measured_curve(const Document& document, const Panel& panel, const std::string& backend,
                     bool bandwidth) {
  const std::size_t index = backend_index(document, backend);
  Curve curve;
  curve.label = shortened(backend.empty() ? "unnamed" : backend, 14);
  curve.hue = extra_hue(index);
  curve.marker = static_cast<Marker>(index % static_cast<std::size_t>(Marker::kMarkers));
  for (const AllReduce& sample : document.all_reduce) {
    if (sample.backend != backend || sample.device != panel.device ||
        sample.world_size != panel.world_size) {
      continue;
    }
    const Distribution& time_us = sample.time_us;
    const std::string tooltip = backend + ", " + show_size(sample.bytes) + ": " +
                                with_unit(show(time_us.median), "µs") + ", bus " +
                                with_unit(show(sample.bus_bandwidth_gbps), "GB/s");
    if (bandwidth) {
      curve.points.push_back(
          {sample.bytes, sample.bus_bandwidth_gbps.value_or(kNoValue), {}, {}, tooltip});
    } else {
      curve.points.push_back(
          {sample.bytes, time_us.median.value_or(kNoValue), time_us.p10, time_us.p90, tooltip});
    }
  }
  std::stable_sort(curve.points.begin(), curve.points.end(),
                   [](const CurvePoint& a, const CurvePoint& b) { return a.x < b.x; });
  return curve;
}

/// A line for each regime: at its border the model may jump.
std::vector<Curve> model_curves(const CommunicationModel& model, const Curve& measured,
                                const Panel& panel, bool bandwidth) {
  std::vector<Curve> curves;
  double low = 0;
  double high = 0;
  for (const CurvePoint& point : measured.points) {
    if (point.x > 0) {
      low = low > 0 ? low : point.x;
      high = point.x;
    }
  }
  for (std::size_t i = 0; i < model.regimes.size() && low > 0; ++i) {
    const double from = std::max(low, model.regimes[i].from_bytes);
    const double to =
        i + 1 < model.regimes.size() ? std::min(high, model.regimes[i + 1].from_bytes) : high;
    if (!(from < to)) {
      continue;
    }
    Curve curve;
    curve.hue = measured.hue;
    curve.has_markers = false;
    curve.line_class = "dash-1 model";
    for (int k = 0; k <= kPointsPerRegime; ++k) {
      const double bytes = from * std::pow(to / from, static_cast<double>(k) / kPointsPerRegime);
      const double time_us =
          model_time_us(model.algorithm, model.regimes[i], bytes, panel.world_size);
      curve.points.push_back(
          {bytes,
           bandwidth ? bus_bandwidth_gbps(bytes, time_us, panel.world_size) : time_us,
           {},
           {},
           ""});
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::string draw_panel(const Document& document, const Panel& panel, bool bandwidth) {
  LinePlot plot;
  const std::string where =
      ranks(panel.world_size) + (panel.device.empty() ? "" : ", " + panel.device);
  const std::string quantity = bandwidth ? "bus bandwidth" : "time";
  plot.description = "All-reduce " + quantity + " by message size, " + where;
  plot.x_title = "message";
  plot.y_title = bandwidth ? "bus bandwidth, GB/s" : "time of one all-reduce, µs";
  plot.x_scale = XScale::kBytes;
  std::vector<Curve> measured;
  for (const std::string& backend : panel.backends) {
    measured.push_back(measured_curve(document, panel, backend, bandwidth));
    if (const CommunicationModel* const model = best_model(document, backend, panel.device)) {
      for (Curve& curve : model_curves(*model, measured.back(), panel, bandwidth)) {
        plot.curves.push_back(std::move(curve));
      }
    }
  }
  plot.curves.insert(plot.curves.end(), measured.begin(), measured.end());
  return figure(where, draw(plot), quantity);
}

std::string numbers(const Document& document) {
  Table table("The numbers: all-reduce", {{"backend", false},
                                          {"device", false},
                                          {"ranks"},
                                          {"bytes"},
                                          {"median, µs"},
                                          {"p10"},
                                          {"p90"},
                                          {"algorithm, GB/s"},
                                          {"bus, GB/s"}});
  for (const AllReduce& sample : document.all_reduce) {
    const Distribution& time_us = sample.time_us;
    table.add({
        text_cell(sample.backend),
        text_cell(sample.device),
        number_cell(sample.world_size, show_count(sample.world_size)),
        number_cell(sample.bytes, show_count(sample.bytes)),
        number_cell(time_us.median, show(time_us.median)),
        number_cell(time_us.p10, show(time_us.p10)),
        number_cell(time_us.p90, show(time_us.p90)),
        number_cell(sample.algorithm_bandwidth_gbps, show(sample.algorithm_bandwidth_gbps)),
        number_cell(sample.bus_bandwidth_gbps, show(sample.bus_bandwidth_gbps)),
    });
  }
  return table.details();
}

std::string models(const Document& document) {
  Table table("The numbers: fitted models", {{"backend", false},
                                             {"device", false},
                                             {"algorithm", false},
                                             {"ranks", false},
                                             {"from bytes"},
                                             {"α, µs"},
                                             {"β, µs per MiB"},
                                             {"median error"},
                                             {"points"}});
  for (const CommunicationModel& model : document.communication_models) {
    std::string fitted;
    for (const int world_size : model.world_sizes) {
      fitted += (fitted.empty() ? "" : ", ") + show_count(world_size);
    }
    for (const Regime& regime : model.regimes) {
      table.add({
          text_cell(model.backend),
          text_cell(model.device),
          text_cell(model.algorithm),
          text_cell(fitted),
          number_cell(regime.from_bytes, show_count(regime.from_bytes)),
          number_cell(regime.alpha_us, show(regime.alpha_us)),
          number_cell(regime.beta_us_per_mib, show(regime.beta_us_per_mib)),
          number_cell(model.median_relative_error, show_percent(model.median_relative_error, 1)),
          number_cell(model.points, show_count(model.points)),
      });
    }
  }
  return table.details();
}

}  // namespace

Section all_reduce_section(const Material& material) {
  const Document& document = material.document;
  std::vector<std::string> panels;
  for (const Panel& panel : find_panels(document)) {
    panels.push_back(draw_panel(document, panel, false));
    panels.push_back(draw_panel(document, panel, true));
  }
  const std::string note = paragraph(
      "One all-reduce alone, by message size; both axes logarithmic, whiskers from the 10th to the "
      "90th percentile. Bus bandwidth is bytes over time, times 2(<i>n</i>−1)/<i>n</i>: "
      "comparable over numbers of ranks <i>n</i>, and with the speed of the link.");
  const std::string fitted =
      document.communication_models.empty()
          ? ""
          : paragraph(
                "Dashed: the better of the two models fitted to each backend, ring "
                "<i>T</i> = 2(<i>n</i>−1)α + 2(<i>n</i>−1)/<i>n</i> · <i>B</i>β and tree "
                "<i>T</i> = 2 log₂(<i>n</i>) α + 2<i>B</i>β, with its own α and β from each border "
                "of message sizes on.");
  const std::string drawn = figures(panels);
  const std::string tables = numbers(document) + models(document);
  return {"all-reduce", "All-reduce", drawn + tables == "" ? "" : note + fitted + drawn + tables};
}

}  // namespace ddp::bench::html
