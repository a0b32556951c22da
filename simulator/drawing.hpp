// simulator/drawing.hpp - lanes of compute, communication and memory over time, one group a rank.
#pragma once

#include <string>

#include "simulator/simulator.hpp"

namespace ddp::sim {

/// For a terminal: a letter stands for what most of its column's time went to, "." for waiting.
/// @param columns of the lanes alone
std::string draw_text(const Simulation& simulation, int columns);

/// One image, readable on light and on dark pages.
/// @param title its first line
std::string draw_svg(const Simulation& simulation, const std::string& title);

/// "4.0 MiB"
std::string bytes_text(double bytes);

}  // namespace ddp::sim
