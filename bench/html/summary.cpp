#include <algorithm>

#include "bench/html/sections.hpp"

namespace ddp::bench::html {
namespace {

/// Columns that say the same in every row are left out.
struct Shown {
  bool speedup = false;
  bool device = false;
  bool nodes = false;
};

std::string spread(const Distribution& step_ms) {
  return step_ms.p10 && step_ms.p90 ? show(step_ms.p10) + " – " + show(step_ms.p90) : kNothing;
}

std::string parity(const Run& run) {
  return !run.parity_ok ? kNothing : *run.parity_ok ? "ok" : "failed";
}

Cell program_cell(const Material& material, const Run& run) {
  const Series& series = material.series.of(run);
  Svg swatch(14, 14, series.label);
  {
    const Svg::Group group = swatch.group("series", series.hue.style());
    swatch.marker(series.marker, series.hollow, {7, 7});
  }
  return {"<span class=\"program\">" + swatch.str() + escape(run.program) + "</span>", std::nullopt,
          ""};
}

std::vector<Cell> row(const Material& material, const Group& group, const Run& run,
                      const Shown& shown) {
  const auto dash_for_none = [](const std::string& text) {
    return text_cell(text == "none" ? "" : text);
  };
  const Number world_size = run.world_size > 0 ? Number(run.world_size) : std::nullopt;
  std::vector<Cell> cells = {program_cell(material, run), dash_for_none(run.launcher),
                             dash_for_none(run.backend)};
  if (shown.speedup) {
    cells.push_back(dash_for_none(run.speedup));
  }
  if (shown.device) {
    cells.push_back(text_cell(run.device));
  }
  if (shown.nodes) {
    cells.push_back(number_cell(run.nodes, show_count(run.nodes)));
  }
  cells.push_back(number_cell(world_size, show_count(world_size)));
  cells.push_back(number_cell(run.global_batch, show_count(run.global_batch)));
  if (!run.has_speed()) {
    cells.push_back({"<a href=\"#problems\">no speed</a>", std::nullopt, "number failed"});
    return cells;
  }
  const Number speedup = speedup_of(run, group);
  cells.push_back(number_cell(run.step_ms.median, show(run.step_ms.median)));
  cells.push_back(number_cell(std::nullopt, spread(run.step_ms)));
  cells.push_back(number_cell(run.samples_per_second, show_count(run.samples_per_second)));
  cells.push_back(number_cell(speedup, show_factor(speedup)));
  cells.push_back(number_cell(run.efficiency, show_efficiency(run.efficiency)));
  cells.push_back(text_cell(parity(run)));
  return cells;
}

}  // namespace

Section summary_section(const Material& material) {
  Shown shown;
  for (const Run& run : material.document.runs) {
    const Run& first = material.document.runs.front();
    shown.speedup |= !run.speedup.empty() && run.speedup != "none";
    shown.device |= run.device != first.device;
    shown.nodes |= run.nodes != first.nodes || run.nodes > 1;
  }
  std::vector<Column> columns = {{"program", false}, {"launcher", false}, {"backend", false}};
  if (shown.speedup) {
    columns.push_back({"speed-up", false});
  }
  if (shown.device) {
    columns.push_back({"device", false});
  }
  if (shown.nodes) {
    columns.push_back({"nodes"});
  }
  for (const char* title :
       {"ranks", "batch", "step, ms", "p10 – p90", "samples/s", "vs one process", "efficiency"}) {
    columns.push_back({title});
  }
  columns.push_back({"parity", false});

  Table table("All configurations", columns);
  for (const Group& group : material.groups) {
    table.begin_group(group.title());
    for (const Run* run : group.runs) {
      table.add(row(material, group, *run, shown));
    }
  }
  const std::string note = paragraph(
      "A step lasts from the end of the one before to its own end, on the slowest rank; its time "
      "is the median over all timed steps of all repetitions. Batch: samples per step over all "
      "ranks. Efficiency: samples per second against one process, divided by the number of ranks. "
      "Parity: after training on the same data, the weights have moved as far as those of one "
      "process, to 1e-4; a configuration that fails this has no speed.");
  return {"summary", "Summary", table.is_empty() ? "" : note + table.html()};
}

}  // namespace ddp::bench::html
