// bench/report/page/series.hpp - what the programs of a report are called, and which colour each
// has.
#pragma once

#include <vector>

#include "bench/report/page/values.hpp"

namespace ddp::bench::page {

/// Runs that differ only in model, scaling and world size are one series: a curve in the plots.
/// Adds to each run what the page calls it: "program" ("03_ddp_spawn_by_hand"), "how" ("mpirun,
/// gloo"), "full_name" (both), "speedup" (with all that changes how gradients travel), "workload"
/// ("S, weak scaling"), "hue" (a colour of the style sheet) and "series", its place in the list
/// returned.
/// @return for each series "label", as short as this report allows, "full_name", "hue", "dash" (0
/// to
///         3, tells series of one program apart) and "is_peer"; stages first, in order of program
Json name_series(std::vector<Json>& runs);

/// Stage 01: what the others are measured against.
bool is_baseline(const Json& run);
bool has_speed(const Json& run);

}  // namespace ddp::bench::page
