// bench/run/benchmark_flags.hpp - which of Google Benchmark's own flags mean something to bench.
#pragma once

#include "bench/run/settings.hpp"

namespace ddp::bench {

/// Takes from settings.benchmark_flags what bench does itself; the library gets them all the same.
/// @throws UsageError naming a flag without effect here, or a value that the library would answer
///         with its help text, with success, or at the end of the measurement
void read_benchmark_flags(Settings& settings);

}  // namespace ddp::bench
