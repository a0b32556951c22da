// bench/micro/options.hpp - the command line of bench_micro.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/launch/options.hpp"

namespace ddp::micro {

struct MicroOptions {
  std::string suite;  ///< "all_reduce" or "pieces"
  std::optional<int> nprocs;  ///< none: what the launcher started, else two
  std::vector<std::string> backends = {"auto"};
  /// Sizes of the all-reduces, from where latency counts to where bandwidth does.
  std::vector<int64_t> bytes = {4, 64, 1024, 16 << 10, 256 << 10, 4 << 20, 16 << 20};
  double min_seconds = 0.2;  ///< for which each benchmark is repeated
  /// Google Benchmark's own, "--benchmark_out=FILE".
  std::vector<std::string> benchmark_flags;
  Options stage;  ///< what a stage would have been told: model, batch, device, threads, timeout
};

/// Dashes and underscores in option names are equal.
/// @throws Answered after --help and --version
/// @throws UsageError naming the option
MicroOptions parse_micro_options(int argc, const char* const* argv);

/// `options.stage` with this --backend. @throws UsageError if the stages know no such backend
Options stage_options(const MicroOptions& options, const std::string& backend);

}  // namespace ddp::micro
