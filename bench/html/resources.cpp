#include <algorithm>
#include <map>
#include <utility>

#include "bench/html/row_plot.hpp"
#include "bench/html/sections.hpp"
#include "bench/report/statistics.hpp"

namespace ddp::bench::html {
namespace {

/// The same program under the same launcher on as many ranks, over all workloads.
struct Place {
  const Run* first;
  std::vector<const Run*> runs;
};

std::vector<Place> find_places(const Material& material) {
  std::map<std::pair<std::size_t, int>, Place> places;
  for (const Run& run : material.document.runs) {
    if (!run.is_control() && run.error.empty()) {
      Place& place = places[{material.series.of(run).index, run.world_size}];
      place.first = place.runs.empty() ? &run : place.first;
      place.runs.push_back(&run);
    }
  }
  std::vector<Place> ordered;
  ordered.reserve(places.size());
  for (auto& [key, place] : places) {
    ordered.push_back(std::move(place));
  }
  return ordered;
}

std::string workload(const Run& run) {
  return run.model + (run.scaling.empty() ? "" : ", " + run.scaling);
}

/// A dot for each workload, unless there is only one.
std::vector<BarMark> dots(const Place& place, Number (*value)(const Run&), const char* unit) {
  std::vector<BarMark> marks;
  for (const Run* run : place.runs) {
    if (value(*run)) {
      marks.push_back(
          {value(*run), "mark-dot", workload(*run) + ": " + with_unit(show(value(*run)), unit)});
    }
  }
  return marks.size() > 1 ? marks : std::vector<BarMark>();
}

Number median_over(const Place& place, Number (*value)(const Run&)) {
  std::vector<double> values;
  for (const Run* run : place.runs) {
    if (value(*run)) {
      values.push_back(*value(*run));
    }
  }
  return median(values);
}

Number peak_rss(const Run& run) {
  return run.peak_rss_mib;
}

Number job_peak_rss(const Run& run) {
  return run.job_peak_rss_mib;
}

Number startup_s(const Run& run) {
  return run.startup_ms ? Number(*run.startup_ms / 1e3) : std::nullopt;
}

std::string memory(const Material& material, const std::vector<Place>& places) {
  BarPlot plot;
  plot.description = "Peak memory of the largest rank and of the job";
  plot.x_title = "MiB";
  for (const Place& place : places) {
    const Number rank_mib = median_over(place, peak_rss);
    const Number job_mib = median_over(place, job_peak_rss);
    if (!rank_mib) {
      continue;
    }
    BarRow row;
    row.label = material.series.row_label(*place.first);
    row.style = material.series.of(*place.first).hue.style();
    row.segments.push_back(
        {*rank_mib, "bar", "largest rank: " + with_unit(show(rank_mib), "MiB"), "", ""});
    if (job_mib && *job_mib > *rank_mib) {
      row.segments.push_back({*job_mib - *rank_mib, "bar rest",
                              "all ranks: " + with_unit(show(job_mib), "MiB"), "", ""});
    }
    row.marks = dots(place, peak_rss, "MiB");
    row.value = show(rank_mib) + (job_mib && *job_mib > *rank_mib ? " / " + show(job_mib) : "");
    plot.rows.push_back(std::move(row));
  }
  return figure("Peak resident memory", draw(plot), "largest rank / all ranks, MiB");
}

std::string startup(const Material& material, const std::vector<Place>& places) {
  BarPlot plot;
  plot.description = "Time from the command to the end of the first step";
  plot.x_title = "s";
  for (const Place& place : places) {
    const Number seconds = median_over(place, startup_s);
    if (!seconds) {
      continue;
    }
    BarRow row;
    row.label = material.series.row_label(*place.first);
    row.style = material.series.of(*place.first).hue.style();
    row.segments.push_back({*seconds, "bar", with_unit(show(seconds), "s"), "", ""});
    row.marks = dots(place, startup_s, "s");
    row.value = with_unit(show(seconds), "s");
    plot.rows.push_back(std::move(row));
  }
  return figure("Start-up", draw(plot), "from the command to the end of the first step");
}

std::string slowest_rank(const Run& run) {
  if (!run.slowest_rank.rank) {
    return "";
  }
  return "rank " + show_count(run.slowest_rank.rank) + ", " +
         show_percent(run.slowest_rank.share_of_steps) + " of steps, " +
         show_signed_percent(run.slowest_rank.median_excess);
}

bool has_gpu(const Run& run) {
  return run.gpu.utilisation_percent || run.gpu.power_w || run.gpu.memory_mib;
}

std::string numbers(const Material& material) {
  const bool any_gpu = std::any_of(material.document.runs.begin(), material.document.runs.end(),
                                   [](const Run& run) { return has_gpu(run); });
  std::vector<Column> columns = {
      {"configuration", false}, {"ranks"},           {"largest rank, MiB"},   {"all ranks, MiB"},
      {"start-up, s"},          {"processors busy"}, {"slowest rank", false},
  };
  if (any_gpu) {
    columns.insert(columns.end(), {{"GPU busy"}, {"GPU, W"}, {"GPU, MiB"}});
  }
  Table table("The numbers: memory, start-up, processors", columns);
  for (const Group& group : material.groups) {
    table.begin_group(group.title());
    for (const Run* run : group.runs) {
      if (!run->error.empty()) {
        continue;
      }
      const Number busy_percent = run->gpu.utilisation_percent;
      std::vector<Cell> cells = {
          text_cell(material.series.of(*run).full_name),
          number_cell(run->world_size, show_count(run->world_size)),
          number_cell(run->peak_rss_mib, show(run->peak_rss_mib)),
          number_cell(run->job_peak_rss_mib, show(run->job_peak_rss_mib)),
          number_cell(startup_s(*run), show(startup_s(*run))),
          number_cell(run->cpu_utilisation, show_percent(run->cpu_utilisation)),
          text_cell(slowest_rank(*run)),
      };
      if (any_gpu) {
        cells.push_back(number_cell(busy_percent, with_unit(show(busy_percent), "%")));
        cells.push_back(number_cell(run->gpu.power_w, show(run->gpu.power_w)));
        cells.push_back(number_cell(run->gpu.memory_mib, show(run->gpu.memory_mib)));
      }
      table.add(std::move(cells));
    }
  }
  return table.details();
}

}  // namespace

Section resources_section(const Material& material) {
  const std::vector<Place> places = find_places(material);
  const std::string drawn = figures({memory(material, places), startup(material, places)});
  const std::string note = paragraph(
      "Bars are medians over the workloads, dots the workloads themselves. The launcher’s own "
      "memory is not counted, its time is.");
  return {"resources", "Memory and start-up",
          drawn.empty() ? "" : note + drawn + numbers(material)};
}

}  // namespace ddp::bench::html
