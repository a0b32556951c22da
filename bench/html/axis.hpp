// bench/html/axis.hpp - from values to pixels, and which values get a label.
#pragma once

#include <string>
#include <vector>

#include "bench/html/text.hpp"

namespace ddp::bench::html {

struct Tick {
  double value = 0;
  std::string label;
};

/// The smallest range that holds what was added. What is no finite number is left out; on a
/// logarithmic axis also what is not positive.
class Extent {
 public:
  explicit Extent(bool logarithmic) : logarithmic_(logarithmic) {}
  void add(Number value);
  bool is_empty() const { return is_empty_; }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  bool logarithmic_;
  bool is_empty_ = true;
  double low_ = 0;
  double high_ = 0;
};

class Axis {
 public:
  /// From a little below to a little above the extent. With an empty one nothing can be drawn, but
  /// nothing goes wrong either.
  /// @param at_low, at_high pixels of the ends
  /// @param spacing pixels that two labels need between them
  static Axis logarithmic(const Extent& extent, double at_low, double at_high, double spacing);
  /// From 0 (or what lies below it) to a round number.
  static Axis linear_from_zero(const Extent& extent, double at_low, double at_high, double spacing);
  /// A little more than the extent; for differences, not for amounts.
  static Axis linear(const Extent& extent, double at_low, double at_high, double spacing);
  /// World sizes, evenly spaced if they double. @param counts ascending
  static Axis of_counts(const std::vector<int>& counts, double at_low, double at_high,
                        double spacing);
  /// Message sizes, logarithmic, labelled at powers of two.
  static Axis of_bytes(const Extent& extent, double at_low, double at_high, double spacing);

  /// Pixels; what lies outside is drawn at the end.
  double at(double value) const;
  /// False for what no axis of this kind can show: zero on a logarithmic one.
  bool can_show(Number value) const;
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  Axis(bool logarithmic, double low, double high, double at_low, double at_high)
      : logarithmic_(logarithmic), low_(low), high_(high), at_low_(at_low), at_high_(at_high) {}
  /// Labels those of `values` that lie on the axis and far enough from the one before; on a
  /// horizontal axis, where pixels grow with the values, the labels' own widths count too.
  /// @param label nullptr: numbers, with as many digits as they need
  void set_ticks(const std::vector<double>& values, double spacing,
                 std::string (*label)(double value) = nullptr);

  bool logarithmic_;
  double low_;
  double high_;
  double at_low_;
  double at_high_;
  std::vector<Tick> ticks_;
};

}  // namespace ddp::bench::html
