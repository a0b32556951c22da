// bench/micro/options.hpp - the command line of bench_micro.
#pragma once

#include "common/launch/options.hpp"

namespace ddp::micro {

struct MicroOptions {
  std::string suite;  ///< "all_reduce" or "pieces"
  /// Sizes of the all-reduces, from latency-bound to bandwidth-bound.
  std::vector<int64_t> bytes = {4, 64, 1024, 16 << 10, 256 << 10, 4 << 20, 16 << 20};
  double min_seconds = 0.2;  ///< time of each benchmark
  std::vector<std::string> benchmark_flags;  ///< Google Benchmark's own, "--benchmark_out=FILE"
  Options stage;  ///< a stage's options: layers, batch, device, threads, backend, timeout
};

/// Dashes and underscores in option names are equal.
/// @throws HelpPrinted after --help and --version, UsageError naming the option
MicroOptions parse_micro_options(int argc, const char* const* argv);

}  // namespace ddp::micro
