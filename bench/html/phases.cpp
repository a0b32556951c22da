#include <algorithm>
#include <array>
#include <cmath>

#include "bench/html/row_plot.hpp"
#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

constexpr std::array<const char*, kPhases> kTitles = {"data", "forward", "backward",
                                                      "exposed communication", "optimizer"};

std::string css_class(std::size_t phase) {
  return "phase-" + std::to_string(phase);
}

double sum_of_phases(const Run& run) {
  double sum = 0;
  for (const Number phase_ms : run.phases_ms) {
    sum += std::max(phase_ms.value_or(0), 0.0);
  }
  return std::isfinite(sum) ? sum : 0;
}

BarRow bar_row(const Material& material, const Run& run) {
  BarRow row;
  row.label = material.series.row_label(run);
  const double sum_ms = sum_of_phases(run);
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    if (const Number phase_ms = run.phases_ms[phase]) {
      const std::string share = show_percent(*phase_ms / sum_ms);
      row.segments.push_back({*phase_ms, css_class(phase),
                              std::string(kTitles[phase]) + ": " + show(phase_ms) + " ms, " + share,
                              share, "inside inside-" + std::to_string(phase)});
    }
  }
  row.marks.push_back(
      {run.floor_ms, "mark-floor", "floor: " + with_unit(show(run.floor_ms), "ms")});
  row.marks.push_back({run.predicted_step_ms, "mark-predicted",
                       "predicted: " + with_unit(show(run.predicted_step_ms), "ms")});
  row.value = with_unit(show(run.step_ms.median), "ms");
  return row;
}

std::string key(bool has_floor, bool has_prediction) {
  std::string html = "<ul class=\"key\">";
  const auto add = [&html](const Svg& swatch, const std::string& text) {
    html += "<li>" + swatch.str() + escape(text) + "</li>";
  };
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    Svg swatch(14, 14, kTitles[phase]);
    swatch.rect(css_class(phase), {1, 2}, 12, 10);
    add(swatch, kTitles[phase]);
  }
  if (has_floor) {
    Svg swatch(14, 14, "floor");
    {
      const Svg::Group group = swatch.group("mark mark-floor");
      swatch.line("", {7, 1}, {7, 13});
    }
    add(swatch, "floor: no program can be faster");
  }
  if (has_prediction) {
    Svg swatch(14, 14, "predicted");
    {
      const Svg::Group group = swatch.group("mark mark-predicted");
      swatch.marker(Marker::kDiamond, true, {7, 7});
    }
    add(swatch, "predicted step");
  }
  return html + "</ul>";
}

std::string phase_numbers(const Material& material) {
  Table table("The numbers: parts of a step, ms", {{"configuration", false},
                                                   {"ranks"},
                                                   {"data"},
                                                   {"forward"},
                                                   {"backward"},
                                                   {"exposed comm."},
                                                   {"optimizer"},
                                                   {"step"},
                                                   {"floor"},
                                                   {"predicted"}});
  for (const Group& group : material.groups) {
    table.begin_group(group.title());
    for (const Run* run : group.runs) {
      if (!run->has_speed()) {
        continue;
      }
      std::vector<Cell> cells = {text_cell(material.series.of(*run).full_name),
                                 number_cell(run->world_size, show_count(run->world_size))};
      for (const Number phase_ms : run->phases_ms) {
        cells.push_back(number_cell(phase_ms, show(phase_ms)));
      }
      for (const Number ms : {run->step_ms.median, run->floor_ms, run->predicted_step_ms}) {
        cells.push_back(number_cell(ms, show(ms)));
      }
      table.add(std::move(cells));
    }
  }
  return table.details();
}

std::string bucket_sizes(const Run& run) {
  std::string text;
  for (const double bytes : run.comm.bucket_bytes) {
    text += (text.empty() ? "" : ", ") + show_size(bytes);
  }
  return text;
}

/// What is known of the all-reduces of a step besides the time that it waits for them.
std::string communication_numbers(const Material& material) {
  Table table("The numbers: communication in a step", {{"configuration", false},
                                                       {"ranks"},
                                                       {"bytes per step"},
                                                       {"alone, ms"},
                                                       {"hidden"},
                                                       {"step without it, ms"},
                                                       {"exposed by difference, ms"},
                                                       {"bus bandwidth, GB/s"},
                                                       {"buckets", false}});
  for (const Group& group : material.groups) {
    const auto communicates = [](const Run* run) {
      return run->has_speed() && (run->comm.bytes_per_step || run->comm.alone_ms);
    };
    if (std::none_of(group.runs.begin(), group.runs.end(), communicates)) {
      continue;
    }
    table.begin_group(group.title());
    for (const Run* run : group.runs) {
      if (!communicates(run)) {
        continue;
      }
      table.add({
          text_cell(material.series.of(*run).full_name),
          number_cell(run->world_size, show_count(run->world_size)),
          number_cell(run->comm.bytes_per_step, show_count(run->comm.bytes_per_step)),
          number_cell(run->comm.alone_ms, show(run->comm.alone_ms)),
          number_cell(run->comm.hidden_share, show_percent(run->comm.hidden_share)),
          number_cell(run->no_comm_step_ms, show(run->no_comm_step_ms)),
          number_cell(run->comm.exposed_by_difference_ms, show(run->comm.exposed_by_difference_ms)),
          number_cell(run->comm.bus_bandwidth_gbps, show(run->comm.bus_bandwidth_gbps)),
          text_cell(bucket_sizes(*run)),
      });
    }
  }
  return table.details();
}

}  // namespace

Section phases_section(const Material& material) {
  std::vector<std::string> all;
  bool has_floor = false;
  bool has_prediction = false;
  for (const Group& group : material.groups) {
    BarPlot plot;
    plot.description = "Parts of a step, " + group.title();
    plot.x_title = "ms per step";
    for (const Run* run : group.runs) {
      if (run->has_speed() && sum_of_phases(*run) > 0) {
        plot.rows.push_back(bar_row(material, *run));
        has_floor |= run->floor_ms.has_value();
        has_prediction |= run->predicted_step_ms.has_value();
      }
    }
    all.push_back(figure(group.title(), draw(plot)));
  }
  const std::string panels = figures(all);
  if (panels.empty()) {
    return {"phases", "Where a step’s time goes", ""};
  }
  const std::string note = paragraph(
      "The parts of the steps around the median one, on the slowest rank. <i>Exposed "
      "communication</i> is the time in which a rank waits for an all-reduce with nothing left to "
      "compute; all-reduces that run during backward are part of backward." +
      std::string(has_floor ? " The <i>floor</i> is the larger of what arithmetic and memory "
                              "need at the speed measured here, and the fastest exchange."
                            : ""));
  return {"phases", "Where a step’s time goes",
          note + key(has_floor, has_prediction) + panels + phase_numbers(material) +
              communication_numbers(material)};
}

}  // namespace ddp::bench::html
