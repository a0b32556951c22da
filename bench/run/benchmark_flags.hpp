// bench/run/benchmark_flags.hpp - which of Google Benchmark's own flags mean something to bench.
#pragma once

#include <string>
#include <vector>

#include "bench/run/settings.hpp"

namespace ddp::bench {

struct BenchmarkArguments {
  std::vector<std::string> own;  ///< with dashes in the names of options
  std::vector<std::string> benchmark_flags;  ///< as the library spells them, "--benchmark_out=FILE"
};

/// Tells Google Benchmark's own flags from the others. Dashes and underscores are equal.
BenchmarkArguments split_arguments(int argc, const char* const* argv);

/// Takes from settings.benchmark_flags what bench does itself; the library gets them all the same.
/// @throws UsageError naming a flag without effect here, or a value that the library would answer
///         with its help text, with success, or at the end of the measurement
void read_benchmark_flags(Settings& settings);

}  // namespace ddp::bench
