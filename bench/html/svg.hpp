// bench/html/svg.hpp - builds one drawing; how it looks is the style sheet's matter.
#pragma once

#include <string>
#include <vector>

namespace ddp::bench::html {

struct Point {
  double x = 0;
  double y = 0;
};

enum class Anchor { kStart, kMiddle, kEnd };
enum class Marker { kCircle, kSquare, kDiamond, kTriangle, kTriangleDown, kCross, kPlus, kMarkers };

/// Coordinates are in CSS pixels at full size, y downwards. None of them is ever written as
/// anything but a finite number. Texts and tooltips may hold anything, classes and styles may not:
/// they are written as they are.
class Svg {
 public:
  /// @param description for those who cannot see it
  Svg(double width, double height, const std::string& description);

  /// Closes its element when it goes.
  class Group {
   public:
    explicit Group(Svg& svg) : svg_(svg) {}
    ~Group() { svg_.body_ += "</g>"; }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

   private:
    Svg& svg_;
  };
  [[nodiscard]] Group group(const std::string& css_class, const std::string& style = "",
                            const std::string& tooltip = "");

  void line(const std::string& css_class, Point from, Point to);
  /// Nothing for fewer than two points.
  void path(const std::string& css_class, const std::vector<Point>& points);
  void rect(const std::string& css_class, Point corner, double width, double height,
            const std::string& tooltip = "");
  void marker(Marker marker, bool hollow, Point center);
  void text(const std::string& css_class, Point at, Anchor anchor, const std::string& text);

  std::string str() const;

 private:
  double width_;
  double height_;
  std::string description_;
  std::string body_;
};

/// At most two decimals. What is not finite becomes 0.
std::string coordinate(double value);

/// An upper bound, in most fonts, for a text of the drawings' size.
double text_width(const std::string& text);

}  // namespace ddp::bench::html
