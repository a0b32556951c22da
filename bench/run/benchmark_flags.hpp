// bench/run/benchmark_flags.hpp - which of Google Benchmark's own flags mean something to bench.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddp::bench {

struct Settings;

struct BenchmarkArguments {
  std::vector<std::string> own;  ///< with dashes in the names of options
  std::vector<std::string> benchmark_flags;  ///< as the library spells them, "--benchmark_out=FILE"
};

/// Tells Google Benchmark's own flags from the others. Dashes and underscores are equal.
BenchmarkArguments split_arguments(int argc, const char* const* argv);

/// What the flags ask of the part of the document that Google Benchmark's tools read.
struct BenchmarkOutput {
  std::string file;  ///< --benchmark_out: that part alone; empty: none
  std::vector<std::pair<std::string, std::string>> context;  ///< --benchmark_context
  bool aggregates_only = false;
};

/// Changes the settings that the flags are about.
/// @throws UsageError naming a flag that is unknown or without effect here, or a bad value
void read_benchmark_flags(const std::vector<std::string>& flags, Settings& settings);

}  // namespace ddp::bench
