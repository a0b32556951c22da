#include "bench/html/row_plot.hpp"

#include <algorithm>
#include <cmath>

#include "bench/html/axis.hpp"
#include "bench/html/line_plot.hpp"

namespace ddp::bench::html {
namespace {

constexpr double kRowHeight = 19;
constexpr double kBarHeight = 11;
constexpr double kTop = 4;
constexpr double kBottom = 42;
constexpr std::size_t kMaxRowLabel = 26;

/// Labels at the left, an axis at the bottom, one row below the other.
struct Rows {
  double left = 0;
  double right = 0;
  double bottom = 0;
  double height = 0;

  template <typename Row>
  Rows(const std::vector<Row>& rows, double right_margin) {
    double width = 0;
    for (const Row& row : rows) {
      width = std::max(width, text_width(shortened(row.label, kMaxRowLabel)));
    }
    left = width + 8;
    right = kPlotWidth - right_margin;
    bottom = kTop + kRowHeight * static_cast<double>(rows.size()) + 3;
    height = bottom + kBottom;
  }
  static double middle(std::size_t row) {
    return kTop + kRowHeight * (static_cast<double>(row) + 0.5);
  }
};

void draw_frame(Svg& svg, const Rows& rows, const Axis& axis, const std::string& x_title) {
  for (const Tick& tick : axis.ticks()) {
    const double x = axis.at(tick.value);
    svg.line("grid", {x, kTop}, {x, rows.bottom});
    svg.text("tick", {x, rows.bottom + 15}, Anchor::kMiddle, tick.label);
  }
  svg.line("axis", {rows.left, rows.bottom}, {rows.right, rows.bottom});
  svg.text("axis-title", {(rows.left + rows.right) / 2, rows.height - 8}, Anchor::kMiddle, x_title);
}

void draw_label(Svg& svg, const Rows& rows, std::size_t row, const std::string& label) {
  svg.text("label", {rows.left - 8, Rows::middle(row) + 4}, Anchor::kEnd,
           shortened(label, kMaxRowLabel));
}

double end_of(const BarRow& row) {
  double sum = 0;
  for (const Segment& segment : row.segments) {
    sum += std::max(segment.value, 0.0);
  }
  return std::isfinite(sum) ? sum : 0;
}

void draw_mark(Svg& svg, const BarMark& mark, double x, double y) {
  const Svg::Group group = svg.group("mark " + mark.css_class, "", mark.tooltip);
  if (mark.css_class == "mark-floor") {
    // Above and below, so that what stands in the bar stays readable.
    svg.line("", {x, y - 9}, {x, y - 4});
    svg.line("", {x, y + 4}, {x, y + 9});
  } else {
    svg.marker(mark.css_class == "mark-dot" ? Marker::kCircle : Marker::kDiamond,
               mark.css_class != "mark-dot", {x, y});
  }
}

/// True if a diamond would stand on a text of that width.
bool is_marked(const BarRow& row, const Axis& axis, double middle, double width) {
  return std::any_of(row.marks.begin(), row.marks.end(), [&](const BarMark& mark) {
    return mark.css_class == "mark-predicted" && axis.can_show(mark.value) &&
           std::abs(axis.at(*mark.value) - middle) < width / 2 + 6;
  });
}

void draw_row(Svg& svg, const Rows& rows, const Axis& axis, const BarRow& row, double y) {
  const Svg::Group group = svg.group("row", row.style);
  double sum = 0;
  for (const Segment& segment : row.segments) {
    if (!(segment.value > 0)) {
      continue;
    }
    const double from = axis.at(sum);
    sum += segment.value;
    const double width = axis.at(sum) - from;
    svg.rect(segment.css_class, {from, y - kBarHeight / 2}, width, kBarHeight, segment.tooltip);
    const double label_width = text_width(segment.label);
    if (!segment.label.empty() && width >= label_width + 2 &&
        !is_marked(row, axis, from + width / 2, label_width)) {
      svg.text(segment.label_class, {from + width / 2, y + 3.6}, Anchor::kMiddle, segment.label);
    }
  }
  double end = axis.at(sum);
  for (const BarMark& mark : row.marks) {
    if (axis.can_show(mark.value)) {
      const double x = axis.at(*mark.value);
      draw_mark(svg, mark, x, y);
      // The text at the end keeps clear of marks beside the bar.
      end = x > end - 2 && x < end + text_width(row.value) + 14 ? x + 4 : end;
    }
  }
  svg.text("label", {std::min(end + 6, rows.right + 6), y + 4}, Anchor::kStart, row.value);
}

void draw_row(Svg& svg, const Axis& axis, const IntervalRow& row, double y) {
  const Svg::Group group =
      svg.group(row.muted ? "series undecided" : "series", row.hue.style(), row.tooltip);
  if (axis.can_show(row.even)) {
    const double x = axis.at(*row.even);
    svg.line("even", {x, y - 6}, {x, y + 6});
  }
  if (axis.can_show(row.low) && axis.can_show(row.high)) {
    const double low = axis.at(*row.low);
    const double high = axis.at(*row.high);
    svg.line("interval", {low, y}, {high, y});
    svg.line("whisker", {low, y - 3}, {low, y + 3});
    svg.line("whisker", {high, y - 3}, {high, y + 3});
  }
  svg.marker(row.marker, row.hollow, {axis.at(row.value), y});
}

}  // namespace

std::string draw(const BarPlot& plot) {
  if (plot.rows.empty()) {
    return "";
  }
  double value_width = 0;
  Extent extent(false);
  for (const BarRow& row : plot.rows) {
    value_width = std::max(value_width, text_width(row.value));
    extent.add(end_of(row));
    for (const BarMark& mark : row.marks) {
      extent.add(mark.value);
    }
  }
  const Rows rows(plot.rows, value_width + 12);
  const Axis axis = Axis::linear_from_zero(extent, rows.left, rows.right, 54);
  Svg svg(kPlotWidth, rows.height, plot.description);
  draw_frame(svg, rows, axis, plot.x_title);
  for (std::size_t i = 0; i < plot.rows.size(); ++i) {
    draw_label(svg, rows, i, plot.rows[i].label);
    draw_row(svg, rows, axis, plot.rows[i], Rows::middle(i));
  }
  return svg.str();
}

std::string draw(const IntervalPlot& plot) {
  double note_width = 0;
  Extent extent(plot.logarithmic);
  extent.add(plot.line);
  std::vector<IntervalRow> shown;
  for (const IntervalRow& row : plot.rows) {
    if (!std::isfinite(row.value) || (plot.logarithmic && row.value <= 0)) {
      continue;
    }
    shown.push_back(row);
    note_width = std::max(note_width, text_width(row.note));
    for (const Number value : {Number(row.value), row.low, row.high, row.even}) {
      extent.add(value);
    }
  }
  if (shown.empty()) {
    return "";
  }
  if (plot.band) {
    extent.add(plot.line - *plot.band);
    extent.add(plot.line + *plot.band);
  }
  const Rows rows(shown, note_width + 14);
  const Axis axis = plot.logarithmic ? Axis::logarithmic(extent, rows.left, rows.right, 40)
                                     : Axis::linear(extent, rows.left, rows.right, 46);
  Svg svg(kPlotWidth, rows.height, plot.description);
  if (plot.band) {
    const double low = axis.at(plot.line - *plot.band);
    svg.rect("band", {low, kTop}, axis.at(plot.line + *plot.band) - low, rows.bottom - kTop);
  }
  draw_frame(svg, rows, axis, plot.x_title);
  svg.line("one", {axis.at(plot.line), kTop}, {axis.at(plot.line), rows.bottom});
  for (std::size_t i = 0; i < shown.size(); ++i) {
    draw_label(svg, rows, i, shown[i].label);
    draw_row(svg, axis, shown[i], Rows::middle(i));
    svg.text(shown[i].muted ? "label muted" : "label", {rows.right + 8, Rows::middle(i) + 4},
             Anchor::kStart, shown[i].note);
  }
  return svg.str();
}

}  // namespace ddp::bench::html
