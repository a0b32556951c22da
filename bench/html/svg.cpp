#include "bench/html/svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bench/html/text.hpp"

namespace ddp::bench::html {
namespace {

constexpr double kMaxCoordinate = 1e5;
constexpr double kCharacterWidth = 6.9;
constexpr double kMarkerRadius = 3.6;

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + coordinate(value) + "\"";
}

std::string attribute(const char* name, const std::string& value) {
  return value.empty() ? "" : std::string(" ") + name + "=\"" + value + "\"";
}

std::string title(const std::string& tooltip) {
  return tooltip.empty() ? "" : "<title>" + escape(tooltip) + "</title>";
}

std::string pair(Point point) {
  return coordinate(point.x) + " " + coordinate(point.y);
}

/// The corners around the origin; for the open markers pairs of ends.
std::vector<Point> outline(Marker marker) {
  const double r = kMarkerRadius;
  switch (marker) {
    case Marker::kSquare:
      return {{-0.87 * r, -0.87 * r},
              {0.87 * r, -0.87 * r},
              {0.87 * r, 0.87 * r},
              {-0.87 * r, 0.87 * r}};
    case Marker::kDiamond:
      return {{0, -1.3 * r}, {1.3 * r, 0}, {0, 1.3 * r}, {-1.3 * r, 0}};
    case Marker::kTriangle:
      return {{0, -1.2 * r}, {1.15 * r, 0.9 * r}, {-1.15 * r, 0.9 * r}};
    case Marker::kTriangleDown:
      return {{0, 1.2 * r}, {1.15 * r, -0.9 * r}, {-1.15 * r, -0.9 * r}};
    case Marker::kCross:
      return {{-r, -r}, {r, r}, {-r, r}, {r, -r}};
    case Marker::kPlus:
      return {{0, -1.3 * r}, {0, 1.3 * r}, {-1.3 * r, 0}, {1.3 * r, 0}};
    case Marker::kCircle:
    case Marker::kMarkers:
      break;
  }
  return {};
}

}  // namespace

std::string coordinate(double value) {
  if (!std::isfinite(value)) {
    return "0";
  }
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.2f", std::clamp(value, -kMaxCoordinate, kMaxCoordinate));
  std::string text = buffer;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') {
    text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

double text_width(const std::string& text) {
  return kCharacterWidth * static_cast<double>(count_characters(text));
}

Svg::Svg(double width, double height, const std::string& description)
    : width_(width), height_(height), description_(description) {}

Svg::Group Svg::group(const std::string& css_class, const std::string& style,
                      const std::string& tooltip) {
  body_ += "<g" + attribute("class", css_class) + attribute("style", style) + ">" + title(tooltip);
  return Group(*this);
}

void Svg::line(const std::string& css_class, Point from, Point to) {
  body_ += "<line" + attribute("class", css_class) + attribute("x1", from.x) +
           attribute("y1", from.y) + attribute("x2", to.x) + attribute("y2", to.y) + "/>";
}

void Svg::path(const std::string& css_class, const std::vector<Point>& points) {
  if (points.size() < 2) {
    return;
  }
  std::string commands;
  for (const Point point : points) {
    commands += (commands.empty() ? "M" : "L") + pair(point);
  }
  body_ += "<path" + attribute("class", css_class) + attribute("d", commands) + "/>";
}

void Svg::rect(const std::string& css_class, Point corner, double width, double height,
               const std::string& tooltip) {
  body_ += "<rect" + attribute("class", css_class) + attribute("x", corner.x) +
           attribute("y", corner.y) + attribute("width", std::max(width, 0.0)) +
           attribute("height", std::max(height, 0.0)) +
           (tooltip.empty() ? "/>" : ">" + title(tooltip) + "</rect>");
}

void Svg::marker(Marker marker, bool hollow, Point center) {
  const std::string css_class = hollow ? "marker hollow" : "marker";
  std::vector<Point> corners = outline(marker);
  for (Point& corner : corners) {
    corner = {corner.x + center.x, corner.y + center.y};
  }
  if (corners.empty()) {
    body_ += "<circle" + attribute("class", css_class) + attribute("cx", center.x) +
             attribute("cy", center.y) + attribute("r", kMarkerRadius) + "/>";
  } else if (marker == Marker::kCross || marker == Marker::kPlus) {
    body_ += "<path" + attribute("class", "marker open") +
             attribute("d", "M" + pair(corners[0]) + "L" + pair(corners[1]) + "M" +
                                pair(corners[2]) + "L" + pair(corners[3])) +
             "/>";
  } else {
    std::string commands;
    for (const Point corner : corners) {
      commands += (commands.empty() ? "M" : "L") + pair(corner);
    }
    body_ += "<path" + attribute("class", css_class) + attribute("d", commands + "Z") + "/>";
  }
}

void Svg::text(const std::string& css_class, Point at, Anchor anchor, const std::string& text) {
  const char* const anchors[] = {"", "middle", "end"};
  body_ += "<text" + attribute("class", css_class) + attribute("x", at.x) + attribute("y", at.y) +
           attribute("text-anchor", std::string(anchors[static_cast<std::size_t>(anchor)])) + ">" +
           escape(text) + "</text>";
}

std::string Svg::str() const {
  return "<svg viewBox=\"0 0 " + coordinate(width_) + " " + coordinate(height_) +
         "\" role=\"img\" aria-label=\"" + escape(description_) + "\">" + body_ + "</svg>";
}

}  // namespace ddp::bench::html
