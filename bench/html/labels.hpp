// bench/html/labels.hpp - keeps the labels beside a plot from covering each other.
#pragma once

#include <vector>

namespace ddp::bench::html {

/// Where labels go that would like to stand at `wanted`: in the same order from top to bottom,
/// `gap` apart, moved as little as possible, between `top` and `bottom`. If there is not room for
/// all, the last ones stand below `bottom`.
/// @return one position for each wanted one
std::vector<double> spread_labels(const std::vector<double>& wanted, double gap, double top,
                                  double bottom);

}  // namespace ddp::bench::html
