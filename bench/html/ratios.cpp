#include "bench/html/row_plot.hpp"
#include "bench/html/sections.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench::html {
namespace {

/// The ratio of step times at which both handle as many samples a second.
Number even_ratio(const Run* a, const Run* b) {
  return a != nullptr && b != nullptr && a->global_batch && b->global_batch &&
                 *b->global_batch > 0 && *a->global_batch > 0
             ? Number(*a->global_batch / *b->global_batch)
             : std::nullopt;
}

std::string describe(const Material& material, const std::string& name) {
  const Run* const run = material.document.find(name);
  return run == nullptr ? name : material.series.row_label(*run);
}

IntervalRow make_row(const Material& material, const Comparison& comparison) {
  const Run* const a = material.document.find(comparison.a);
  const Run* const b = material.document.find(comparison.b);
  const Number even = even_ratio(a, b);
  const std::string& verdict = comparison.verdict;
  IntervalRow row;
  row.label = describe(material, comparison.a);
  if (a != nullptr) {
    const Series& series = material.series.of(*a);
    row.hue = series.hue;
    row.marker = series.marker;
    row.hollow = series.hollow;
  } else {
    row.hue = extra_hue(0);
  }
  row.value = *comparison.ratio;
  if (comparison.ci95) {
    row.low = comparison.ci95->low;
    row.high = comparison.ci95->high;
  }
  row.muted = verdict.empty();
  if (comparison.kind == "baseline" && even && *even != 1) {
    row.even = even;
  }
  if (comparison.kind == "peer") {
    row.label += " / " + (b == nullptr ? comparison.b : material.series.of(*b).label);
  }
  row.note = show_factor(comparison.ratio) + (verdict.empty() ? "" : " " + verdict);
  row.tooltip = comparison.a + " over " + comparison.b + ": " + show_factor(comparison.ratio);
  if (comparison.ci95) {
    row.tooltip +=
        " (95 %: " + show(comparison.ci95->low) + " to " + show(comparison.ci95->high) + ")";
  }
  return row;
}

bool is_drawn(const Comparison& comparison) {
  return comparison.ratio && *comparison.ratio > 0;
}

std::string where(const Run* run) {
  return run == nullptr ? "" : run->model + (run->scaling.empty() ? "" : " " + run->scaling) + ", ";
}

/// A panel per workload with its comparisons of one kind; those whose run is not in the document
/// come last.
std::vector<std::string> panels(const Material& material, const std::string& kind,
                                const std::string& x_title, const std::string& note) {
  std::vector<std::string> all;
  std::vector<bool> used(material.document.comparisons.size(), false);
  for (std::size_t g = 0; g <= material.groups.size(); ++g) {
    const Group* const group = g < material.groups.size() ? &material.groups[g] : nullptr;
    IntervalPlot plot;
    plot.x_title = x_title;
    for (std::size_t i = 0; i < used.size(); ++i) {
      const Comparison& comparison = material.document.comparisons[i];
      const Run* const a = material.document.find(comparison.a);
      const bool fits = group == nullptr ||
                        (a != nullptr && a->model == group->model && a->scaling == group->scaling);
      if (!used[i] && fits && comparison.kind == kind && is_drawn(comparison)) {
        plot.rows.push_back(make_row(material, comparison));
        used[i] = true;
      }
    }
    const std::string title = group == nullptr ? "Others" : group->title();
    plot.description = "Ratios of step times " + note;
    plot.description.append(", ").append(title);
    all.push_back(figure(title, draw(plot), note));
  }
  return all;
}

std::string controls(const Material& material) {
  IntervalPlot plot;
  plot.description = "Ratios of two runs of the same configuration";
  plot.x_title = "step time over that of the same once more";
  plot.logarithmic = false;
  plot.band = kControlTolerance;
  for (const Comparison& comparison : material.document.comparisons) {
    if (comparison.kind == "control" && is_drawn(comparison)) {
      IntervalRow row = make_row(material, comparison);
      row.label = where(material.document.find(comparison.a)) + row.label;
      row.muted = !is_control_good(comparison.ratio);
      row.note = show_factor(comparison.ratio) + (row.muted ? " too far" : "");
      plot.rows.push_back(std::move(row));
    }
  }
  return figure("Controls", draw(plot), "the same configuration, measured twice");
}

std::string numbers(const Material& material) {
  Table table("The numbers: ratios of step times", {{"a", false},
                                                    {"over b", false},
                                                    {"kind", false},
                                                    {"ratio"},
                                                    {"95 % from"},
                                                    {"to"},
                                                    {"pairs"},
                                                    {"verdict", false}});
  for (const Comparison& comparison : material.document.comparisons) {
    const Number low = comparison.ci95 ? Number(comparison.ci95->low) : std::nullopt;
    const Number high = comparison.ci95 ? Number(comparison.ci95->high) : std::nullopt;
    table.add({
        code_cell(comparison.a),
        code_cell(comparison.b),
        text_cell(comparison.kind),
        number_cell(comparison.ratio, show_factor(comparison.ratio)),
        number_cell(low, show(low)),
        number_cell(high, show(high)),
        number_cell(comparison.pairs, show_count(comparison.pairs)),
        text_cell(comparison.verdict),
    });
  }
  return table.details();
}

}  // namespace

Section ratios_section(const Material& material) {
  const std::string drawn =
      figures(panels(material, "baseline", "step time over that of one process",
                     "against one process")) +
      figures(panels(material, "peer", "our step time over the peer’s", "against peers")) +
      figures({controls(material)});
  const std::string note = paragraph(
      "The <i>k</i>-th repetition of one configuration over the <i>k</i>-th of the other: median "
      "of these pairs and its 95 % bootstrap interval. Right of 1 a step takes longer. In weak "
      "scaling it also does more: the short grey mark is where both handle equally many samples "
      "per second, and the verdict goes by that. <i>Same</i> is what lies within " +
      show_percent(kControlTolerance) +
      " of it, interval and all. Without a verdict, in grey: fewer than three pairs, an interval "
      "that holds both, or no control of that workload and kind (one process, several) within " +
      show_percent(kControlTolerance) + " of 1.");
  const std::string table = numbers(material);
  return {"ratios", "Ratios and how sure they are",
          drawn.empty() && table.empty() ? "" : note + drawn + table};
}

}  // namespace ddp::bench::html
