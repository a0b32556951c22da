// common/launch/spawn.hpp - three ways to start a stage: alone, by spawn, by a launcher.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// A stage's train function. It returns kDone, or kRunAgain if it stopped on request and saved.
using AloneFunction = ExitCode (*)(const Options& options);
using TrainFunction = ExitCode (*)(const Options& options, const LaunchEnvironment& environment);

/// Runs stages 01 and 02, which are a single process. Refuses launchers that started several
/// processes.
/// @return the exit code; an error is one line on stderr
int run_alone(int argc, char** argv, AloneFunction train);

/// Runs stage 03: starts this program once per rank, with RANK, LOCAL_RANK, WORLD_SIZE and
/// DDP_STORE_FILE in the environment, and waits. The first failure ends the other ranks. SIGTERM,
/// SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded. Even if this process is killed, no rank
/// outlives it. Each rank prints its own errors.
/// @return the first failing rank's exit code (128 + signal if a signal ended it), else 85 if the
/// ranks stopped on request, else 0
int spawn(int argc, char** argv, TrainFunction train, const ExtraOptions& extra = {});

/// Starts this program `world_size` times and waits, for programs with a command line of their own.
/// Every rank gets `argv`, and finds its rank by read_launch_environment(). Call it before any
/// thread exists.
/// @param program name in front of messages
/// @param held_signals signals that are blocked when a rank begins
/// @return the exit code, as spawn() @throws TransientError if a process cannot be started
int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals = {});

/// Runs stages 04 and 05: a launcher started this process and gives its rank.
/// @return the exit code; an error is one line on stderr
int run_rank(int argc, char** argv, TrainFunction train, const ExtraOptions& extra = {});
/// The same for programs that parse their command line themselves.
int run_rank(const std::function<void(const LaunchEnvironment&)>& train);

/// Calls `action` after `train` has returned or thrown, its local objects are destroyed, and its
/// error is printed. Use it to close things that other ranks need, such as rank 0's store.
void at_train_end(std::function<void()> action);

/// Ends the process without static destructors, after the actions of at_train_end(): for threads
/// that cannot be joined.
void skip_destructors_at_exit();

/// Replaces the message of an exception that leaves a thread, such as NCCL's watchdog, by
/// `explain(message)`. The process prints it as one line, waits a moment, so that other ranks can
/// read its store, and exits.
void explain_thread_errors(std::function<std::string(const std::string& what)> explain);

}  // namespace ddp
