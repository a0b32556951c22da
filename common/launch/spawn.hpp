// common/launch/spawn.hpp - a program that starts its ranks itself.
#pragma once

#include "common/launch/run_main.hpp"

namespace ddp {

/// Runs stage 03: starts this program once per rank, with RANK, LOCAL_RANK, WORLD_SIZE and
/// DDP_STORE_FILE in the environment, and waits. The first failure ends the other ranks. SIGTERM,
/// SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded. Even if this process is killed, no rank
/// outlives it. Each rank prints its own errors.
/// @return the first failing rank's exit code (128 + signal if a signal ended it), else 85 if the
/// ranks stopped on request, else 0
int spawn(int argc, char** argv, const TrainFunction& train, const ExtraOptions& extra = {});

/// Starts this program `world_size` times and waits, for programs with a command line of their own.
/// Every rank gets `argv`, and finds its rank by read_launch_environment(). Call it before any
/// thread exists.
/// @param program name in front of messages
/// @param held_signals signals that are blocked when a rank begins
/// @param file another program to start in its place
/// @return the exit code, as spawn() @throws TransientError if a process cannot be started
int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals = {}, const std::string& file = "");

}  // namespace ddp
