// bench/command.hpp - the command line of a run.
#pragma once

#include <map>

#include "bench/plan.hpp"

namespace ddp::bench {

struct Length {
  std::int64_t global_batch = 0;
  std::int64_t epochs = 0;
  std::int64_t timed_steps = 0;  ///< the last steps of the run
};

/// Length of the run for the comparison of weights.
Length parity_length(const PlannedRun& planned);
Length timed_length(const PlannedRun& planned, const Settings& settings);

/// Variables of a program of --program: where it writes its steps, and where its ranks meet.
std::map<std::string, std::optional<std::string>> program_variables(const Run& run,
                                                                    const std::string& folder);

/// What the launcher adds in front; empty if the program starts its processes itself.
/// @throws UsageError if the allocation has too few nodes
std::vector<std::string> launcher_command(const PlannedRun& planned, const Plan& plan);

/// Package of tools/compile_step for a run that trains one: a file for each model, seed, kind of
/// device, processor and LibTorch. compile_steps() makes it.
std::string step_file(const PlannedRun& planned, const Settings& settings);

/// Whole command, launcher included. @param folder for metrics.jsonl and the snapshot
std::vector<std::string> command_line(const PlannedRun& planned, const Plan& plan,
                                      const Length& length, const std::string& folder);

std::string shell_line(const std::vector<std::string>& words);

}  // namespace ddp::bench
