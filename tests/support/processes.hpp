// tests/support/processes.hpp - which processes are there.
#pragma once

#include <sys/types.h>

#include <vector>

namespace ddp::test {

std::vector<pid_t> children_of(pid_t parent);

/// True if none of them runs any more, or all stop within so many seconds. A process that has ended
/// and that nobody has collected yet does not run.
bool all_gone_within(const std::vector<pid_t>& pids, double seconds);

}  // namespace ddp::test
