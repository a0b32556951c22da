// tools/submit/tracking.hpp - what is known about the jobs of an out_dir, and how it is shown.
#pragma once

#include <string>
#include <vector>

#include "tools/submit/command_line.hpp"
#include "tools/submit/state.hpp"

namespace ddp::submit {

/// The out_dir that a command is about.
/// @throws UsageError if there is none
std::string find_out_dir(const CommandLine& line);

/// Asks the schedulers about all jobs that are not over and records the answers.
/// @return one line for each scheduler that could not be asked
std::vector<std::string> refresh(StateFile& state);

/// The table of `submit list`, or its JSON document. Only jobs `picked`, or all if there are none.
void print_jobs(const StateFile& state, const std::vector<int>& picked, bool json,
                const std::vector<std::string>& unreachable);

/// Files with a job's output that are there, the newest attempt's first.
std::vector<std::string> output_files(const Job& job, const std::string& out_dir);

}  // namespace ddp::submit
