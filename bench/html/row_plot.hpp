// bench/html/row_plot.hpp - a row per run: stacked bars, or points with their intervals.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/html/series.hpp"
#include "bench/html/svg.hpp"
#include "bench/html/text.hpp"

namespace ddp::bench::html {

struct Segment {
  double value = 0;
  std::string css_class;
  std::string tooltip;
  std::string label;  ///< inside, where there is room
  std::string label_class;
};

/// Something else that a bar is compared with.
struct BarMark {
  Number value;
  std::string css_class;  ///< "mark-floor" is a line, "mark-predicted" a diamond, "mark-dot" a dot
  std::string tooltip;
};

struct BarRow {
  std::string label;
  std::string style;  ///< of the row; a hue for segments of class "bar"
  std::vector<Segment> segments;
  std::vector<BarMark> marks;
  std::string value;  ///< text at the end of the bar
};

struct BarPlot {
  std::string description;
  std::string x_title;
  std::vector<BarRow> rows;
};

struct IntervalRow {
  std::string label;
  Hue hue;
  Marker marker = Marker::kCircle;
  bool hollow = false;
  bool muted = false;  ///< no verdict
  double value = 0;
  Number low;
  Number high;
  Number even;  ///< a small mark: where neither is better, if that is not at the line
  std::string note;  ///< text at the right
  std::string tooltip;
};

struct IntervalPlot {
  std::string description;
  std::string x_title;
  double line = 1;  ///< where the vertical line stands
  Number band;  ///< half the width of a shaded band around the line
  bool logarithmic = true;
  std::vector<IntervalRow> rows;
};

/// @return an SVG element; empty without rows
std::string draw(const BarPlot& plot);
std::string draw(const IntervalPlot& plot);

}  // namespace ddp::bench::html
