// common/launch/cpu_share.hpp - how many threads a process computes with, and on which cores.
#pragma once

#include <string>
#include <vector>

#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// The cores that this process may run on, ascending.
std::vector<int> allowed_cores();

/// "0-3,8".
std::string format_cores(const std::vector<int>& cores);

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
Options with_cpu_share(Options options, const LaunchEnvironment& environment);

}  // namespace ddp
