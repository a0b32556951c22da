// bench/report/page/series.hpp - what the runs of a report are called, and which colour each has.
#pragma once

#include <vector>

#include "bench/report/page/tables.hpp"
#include "bench/report/record.hpp"

namespace ddp::bench::page {

/// A run and its members as JSON, with what the page calls it: "program" ("03_ddp_spawn_by_hand"),
/// "how" ("mpirun, gloo"), "full_name" (both), "speedup" (with all that changes how gradients
/// travel), "workload" ("S, weak scaling"), "hue" (a colour of the style sheet) and "series", its
/// place in NamedRuns::series. Runs that differ only in model, scaling and world size are one
/// series: a curve in the plots.
struct NamedRun {
  const Run* run;
  Json row;
};

struct NamedRuns {
  std::vector<NamedRun> runs;  ///< in the report's order
  /// Of each "label", as short as this report allows, "full_name", "hue", "dash" (0 to 3, tells
  /// series of one program apart) and "is_peer"; stages first, in order of program.
  Json series;
};

/// @param report must outlive the result
NamedRuns name_runs(const Report& report);

}  // namespace ddp::bench::page
