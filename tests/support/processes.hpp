// tests/support/processes.hpp - checks that processes are gone.
#pragma once

#include <sys/types.h>

#include <vector>

namespace ddp::test {

std::vector<pid_t> children_of(pid_t parent);

/// True if none of the processes runs after at most that many seconds. Zombies do not count.
bool all_gone_within(const std::vector<pid_t>& pids, double seconds);

}  // namespace ddp::test
