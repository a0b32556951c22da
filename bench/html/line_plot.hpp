// bench/html/line_plot.hpp - values over a second quantity, one curve per series.
#pragma once

#include <string>
#include <vector>

#include "bench/html/series.hpp"
#include "bench/html/svg.hpp"
#include "bench/html/text.hpp"

namespace ddp::bench::html {

/// What all plots are wide, in CSS pixels at full size.
inline constexpr double kPlotWidth = 480;

struct CurvePoint {
  double x = 0;
  double y = 0;
  Number low;  ///< of the whisker
  Number high;
  std::string tooltip;
};

struct Curve {
  std::string label;  ///< empty: no label
  Hue hue;
  Marker marker = Marker::kCircle;
  bool hollow = false;
  bool has_markers = true;
  std::string line_class;  ///< empty: points alone
  std::vector<CurvePoint> points;  ///< ascending in x
};

/// A thin grey line that the curves are read against.
struct Guide {
  std::string label;
  std::vector<CurvePoint> points;
};

enum class XScale { kCounts, kBytes, kLogarithmic };
enum class YScale { kLogarithmic, kFromZero, kLinear };

struct LinePlot {
  std::string description;
  std::string x_title;
  std::string y_title;  ///< stands above the axis
  XScale x_scale = XScale::kCounts;
  YScale y_scale = YScale::kLogarithmic;
  bool spread = false;  ///< moves points of the same x apart, so that whiskers can be told apart
  std::vector<Curve> curves;
  std::vector<Guide> guides;
  std::vector<double> y_values;  ///< that the axis has to reach
};

/// @return an SVG element; empty if no point can be drawn
std::string draw(const LinePlot& plot);

}  // namespace ddp::bench::html
