// bench/micro/runner.hpp - rank 0's side: Google Benchmark runs what all ranks measure.
#pragma once

#include <string>
#include <vector>

#include "bench/micro/options.hpp"
#include "bench/micro/team.hpp"

namespace ddp::micro {

/// Registers the entries, runs those that --benchmark_filter selects, and reports to standard
/// output and --benchmark_out. Once per process.
/// @throws UsageError if the filter selects none
/// @throws Error (1) if a result was wrong: the other benchmarks have been reported by then
void run_benchmarks(const std::vector<Entry>& entries, const MicroOptions& options, Team& team);

}  // namespace ddp::micro
