// common/launch/cpu_share.hpp - how many threads a process computes with, and on which cores.
#pragma once

#include <string>
#include <vector>

#include "common/base/process_usage.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// The cores that this process may run on, ascending.
std::vector<int> allowed_cores();

/// "0-3,8".
std::string format_cores(const std::vector<int>& cores);

/// How many processors this process and those beside it have the time of: the allowed cores, or
/// fewer if a container's quota is less.
/// @param quota of cpu_quota()
/// @return at least one
int count_processors(const std::vector<int>& allowed, double quota = cpu_quota());

/// The part of `allowed` that is for this process: the ranks of a node divide it among themselves,
/// in order; more ranks than cores share. Under Open MPI and Slurm, which bind ranks themselves,
/// all of it, if it is less than the node's `online` cores.
/// @return at least one core
std::vector<int> share_of_cores(const std::vector<int>& allowed, int online,
                                const LaunchEnvironment& environment);

/// Settles --threads auto and does what --bind says, before any thread exists. With --verbose says
/// on stderr what became of it.
/// @return the options with the number of threads
/// @throws Error (1) if the operating system refuses
/// @param quota of cpu_quota(), which the ranks of a node share: more threads than its processors
/// would be stopped in turns, and all wait for the one that is
Options with_cpu_share(Options options, const LaunchEnvironment& environment,
                       double quota = cpu_quota());

}  // namespace ddp
