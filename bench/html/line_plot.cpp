#include "bench/html/line_plot.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/html/axis.hpp"
#include "bench/html/labels.hpp"

namespace ddp::bench::html {
namespace {

constexpr double kTop = 30;  // the title of the y axis
constexpr double kLeft = 48;  // labels of the y axis
constexpr double kBottom = 42;  // labels and title of the x axis
constexpr double kLeftLabel = 18;  // room for "01" before the first points
constexpr double kMinHeight = 300;
constexpr double kLabelGap = 14.5;
constexpr double kSwatch = 22;  // from the frame to a label's text
constexpr double kMaxSpread = 8;

/// A label beside the frame, which wants to be where its curve ends.
struct SideLabel {
  std::string text;
  const Curve* curve = nullptr;  ///< nullptr: of a guide
  Point end;
  double y = 0;
};

void spread(std::vector<SideLabel>& labels, double top, double bottom) {
  std::vector<double> wanted;
  wanted.reserve(labels.size());
  for (const SideLabel& label : labels) {
    wanted.push_back(label.end.y);
  }
  const std::vector<double> positions = spread_labels(wanted, kLabelGap, top, bottom);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i].y = positions[i];
  }
}

/// One plot being drawn.
class Drawing {
 public:
  explicit Drawing(const LinePlot& plot);
  std::string str();

 private:
  Axis make_x_axis() const;
  Axis make_y_axis() const;
  bool can_show(const CurvePoint& point) const {
    return x_.can_show(point.x) && y_.can_show(point.y);
  }
  /// Curves that have a point at the left end only are labelled there.
  bool is_labelled_left(const Curve& curve) const;
  double right_margin() const;
  std::vector<Curve> drawable_curves() const;
  double height() const;
  /// How far a point is moved sideways, so that those of the same x stand side by side.
  double shift(std::size_t curve, double x) const;

  void draw_frame(Svg& svg) const;
  void draw_guides(Svg& svg);
  void draw_curves(Svg& svg);
  void draw_labels(Svg& svg);

  const LinePlot& plot_;
  std::vector<Curve> curves_;
  double height_;
  double left_ = 0;
  double right_ = 0;
  double bottom_ = 0;
  Axis x_;
  Axis y_;
  double spread_step_ = 0;
  std::vector<SideLabel> right_labels_;
  std::vector<SideLabel> left_labels_;
};

std::vector<Curve> Drawing::drawable_curves() const {
  std::vector<Curve> curves;
  for (const Curve& curve : plot_.curves) {
    Curve kept = curve;
    kept.points.erase(std::remove_if(kept.points.begin(), kept.points.end(),
                                     [&](const CurvePoint& point) {
                                       const bool y_fits =
                                           plot_.y_scale != YScale::kLogarithmic || point.y > 0;
                                       return !std::isfinite(point.x) || !std::isfinite(point.y) ||
                                              point.x <= 0 || !y_fits;
                                     }),
                      kept.points.end());
    if (!kept.points.empty()) {
      curves.push_back(std::move(kept));
    }
  }
  return curves;
}

Drawing::Drawing(const LinePlot& plot)
    : plot_(plot),
      curves_(drawable_curves()),
      height_(height()),
      left_(kLeft),
      right_(kPlotWidth - right_margin()),
      bottom_(height_ - kBottom),
      x_(make_x_axis()),
      y_(make_y_axis()) {
  if (plot_.spread && curves_.size() > 1) {
    double gap = right_ - left_;
    for (std::size_t i = 1; i < x_.ticks().size(); ++i) {
      gap = std::min(gap, x_.at(x_.ticks()[i].value) - x_.at(x_.ticks()[i - 1].value));
    }
    spread_step_ = std::min(kMaxSpread, 0.45 * gap / static_cast<double>(curves_.size()));
  }
}

double Drawing::height() const {
  std::size_t labels = plot_.guides.size();
  for (const Curve& curve : curves_) {
    labels += curve.label.empty() ? 0U : 1U;
  }
  return std::max(kMinHeight, kTop + kBottom + kLabelGap * static_cast<double>(labels));
}

Axis Drawing::make_x_axis() const {
  // Points that are moved apart must stay inside.
  const double inset = plot_.spread ? 30 : plot_.x_scale == XScale::kCounts ? 16 : 4;
  const double low = left_ + inset + (plot_.x_scale == XScale::kCounts ? kLeftLabel : 0);
  const double high = right_ - inset;
  if (plot_.x_scale == XScale::kCounts) {
    std::set<int> counts;
    for (const Curve& curve : curves_) {
      for (const CurvePoint& point : curve.points) {
        counts.insert(static_cast<int>(point.x));
      }
    }
    return Axis::of_counts({counts.begin(), counts.end()}, low, high, 14);
  }
  Extent extent(true);
  for (const Curve& curve : curves_) {
    for (const CurvePoint& point : curve.points) {
      extent.add(point.x);
    }
  }
  return plot_.x_scale == XScale::kBytes ? Axis::of_bytes(extent, low, high, 52)
                                         : Axis::logarithmic(extent, low, high, 38);
}

Axis Drawing::make_y_axis() const {
  Extent extent(plot_.y_scale == YScale::kLogarithmic);
  for (const Curve& curve : curves_) {
    for (const CurvePoint& point : curve.points) {
      extent.add(point.y);
      extent.add(point.low);
      extent.add(point.high);
    }
  }
  for (const Guide& guide : plot_.guides) {
    for (const CurvePoint& point : guide.points) {
      extent.add(point.y);
    }
  }
  for (const double value : plot_.y_values) {
    extent.add(value);
  }
  switch (plot_.y_scale) {
    case YScale::kFromZero:
      return Axis::linear_from_zero(extent, bottom_, kTop, 26);
    case YScale::kLinear:
      return Axis::linear(extent, bottom_, kTop, 26);
    case YScale::kLogarithmic:
      break;
  }
  return Axis::logarithmic(extent, bottom_, kTop, 19);
}

double Drawing::right_margin() const {
  double width = 0;
  for (const Curve& curve : curves_) {
    width = std::max(width, text_width(curve.label));
  }
  for (const Guide& guide : plot_.guides) {
    width = std::max(width, text_width(guide.label));
  }
  return width > 0 ? width + kSwatch + 4 : 12;
}

bool Drawing::is_labelled_left(const Curve& curve) const {
  const std::vector<Tick>& ticks = x_.ticks();
  return plot_.x_scale == XScale::kCounts && ticks.size() > 1 &&
         curve.points.back().x <= ticks.front().value && count_characters(curve.label) <= 3;
}

double Drawing::shift(std::size_t curve, double x) const {
  double before = 0;
  double all = 0;
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    const std::vector<CurvePoint>& points = curves_[i].points;
    if (std::any_of(points.begin(), points.end(),
                    [&](const CurvePoint& point) { return point.x == x; })) {
      before += i < curve ? 1 : 0;
      all += 1;
    }
  }
  return spread_step_ * (before - (all - 1) / 2);
}

void Drawing::draw_frame(Svg& svg) const {
  for (const Tick& tick : y_.ticks()) {
    const double y = y_.at(tick.value);
    svg.line("grid", {left_, y}, {right_, y});
    svg.text("tick", {left_ - 7, y + 4}, Anchor::kEnd, tick.label);
  }
  for (const Tick& tick : x_.ticks()) {
    const double x = x_.at(tick.value);
    svg.line("grid", {x, kTop}, {x, bottom_});
    svg.text("tick", {x, bottom_ + 16}, Anchor::kMiddle, tick.label);
  }
  svg.line("axis", {left_, bottom_}, {right_, bottom_});
  svg.text("axis-title", {0, 14}, Anchor::kStart, plot_.y_title);
  svg.text("axis-title", {(left_ + right_) / 2, height_ - 6}, Anchor::kMiddle, plot_.x_title);
}

void Drawing::draw_guides(Svg& svg) {
  for (const Guide& guide : plot_.guides) {
    std::vector<Point> path;
    for (const CurvePoint& point : guide.points) {
      if (can_show(point)) {
        path.push_back({x_.at(point.x), y_.at(point.y)});
      }
    }
    svg.path("guide", path);
    if (!path.empty() && !guide.label.empty()) {
      right_labels_.push_back({guide.label, nullptr, path.back(), 0});
    }
  }
}

void Drawing::draw_curves(Svg& svg) {
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    const Curve& curve = curves_[i];
    const Svg::Group series = svg.group("series", curve.hue.style());
    std::vector<Point> path;
    for (const CurvePoint& point : curve.points) {
      path.push_back({x_.at(point.x) + shift(i, point.x), y_.at(point.y)});
    }
    if (!curve.line_class.empty()) {
      svg.path("curve " + curve.line_class, path);
    }
    for (std::size_t k = 0; k < path.size() && curve.has_markers; ++k) {
      const CurvePoint& point = curve.points[k];
      const Svg::Group marked = svg.group("", "", point.tooltip);
      if (y_.can_show(point.low) && y_.can_show(point.high)) {
        const double x = path[k].x;
        const double low = y_.at(*point.low);
        const double high = y_.at(*point.high);
        svg.line("whisker", {x, low}, {x, high});
        svg.line("whisker", {x - 2, low}, {x + 2, low});
        svg.line("whisker", {x - 2, high}, {x + 2, high});
      }
      svg.marker(curve.marker, curve.hollow, path[k]);
    }
    if (!curve.label.empty()) {
      (is_labelled_left(curve) ? left_labels_ : right_labels_)
          .push_back({curve.label, &curve, path.back(), 0});
    }
  }
}

void Drawing::draw_labels(Svg& svg) {
  spread(right_labels_, kTop + 2, bottom_ - 4);
  for (const SideLabel& label : right_labels_) {
    const Point at = {right_ + 12, label.y};
    if (label.curve == nullptr) {
      svg.line("leader", {label.end.x + 2, label.end.y}, {at.x + 4, at.y});
      svg.text("label muted", {right_ + kSwatch, at.y + 4}, Anchor::kStart, label.text);
      continue;
    }
    const Svg::Group series = svg.group("series", label.curve->hue.style());
    svg.line("leader", {label.end.x + 5, label.end.y}, {at.x - 5, at.y});
    if (label.curve->has_markers) {
      svg.marker(label.curve->marker, label.curve->hollow, at);
    }
    svg.text("label", {right_ + kSwatch, at.y + 4}, Anchor::kStart, label.text);
  }
  spread(left_labels_, kTop + 2, bottom_ - 4);
  for (const SideLabel& label : left_labels_) {
    svg.text("label", {label.end.x - 7, label.y + 4}, Anchor::kEnd, label.text);
  }
}

std::string Drawing::str() {
  if (curves_.empty()) {
    return "";
  }
  Svg svg(kPlotWidth, height_, plot_.description);
  draw_frame(svg);
  draw_guides(svg);
  draw_curves(svg);
  draw_labels(svg);
  return svg.str();
}

}  // namespace

std::string draw(const LinePlot& plot) {
  return Drawing(plot).str();
}

}  // namespace ddp::bench::html
