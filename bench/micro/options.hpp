// bench/micro/options.hpp - the command line of bench_micro.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/launch/options.hpp"

namespace ddp::micro {

inline constexpr std::int64_t kFloatBytes = sizeof(float);

/// A training step's communication: one all-reduce per bucket, all started before any wait.
struct StepBuckets {
  std::string name;
  std::vector<std::int64_t> bytes;  ///< of each bucket, in the order in which they are started
};

struct MicroOptions {
  /// "limits", what the machine can do: arithmetic and memory, all ranks busy at once;
  /// "all_reduce", what the backends can do; "pieces", what single pieces of a step cost.
  std::string suite;
  std::optional<int> nprocs;
  std::vector<std::string> backends = {"auto"};
  std::vector<std::int64_t> bytes;  ///< of the all-reduces that are measured one by one
  std::vector<StepBuckets> steps;
  double min_seconds = 0.2;  ///< how long each benchmark is repeated, at least
  int repetitions = 1;
  int passes = 1;  ///< over everything, each in another order
  std::vector<std::string> benchmark_flags;  ///< Google Benchmark's own, spelled its way
  /// What a stage would have been told: device, threads, timeout.
  Options stage;

  /// Processes to start where no launcher has started them.
  int processes() const;
};

/// Dashes and underscores in option names are equal.
/// @throws Answered after --help and --version
/// @throws UsageError naming the option: unknown, malformed, out of range or of another suite
MicroOptions parse_micro_options(int argc, const char* const* argv);

/// `options.stage` with --backend set. @throws UsageError if the stages know no such backend
Options stage_options(const MicroOptions& options, const std::string& backend);

}  // namespace ddp::micro
