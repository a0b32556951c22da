// common/launch/spawn.hpp - the three ways to enter a stage: alone, by spawn, by a launcher.
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

/// Stages 01 and 02: this process is the only one. Refuses to run under a launcher that started
/// several.
/// @return the exit code; an error is one line on stderr
int run_alone(int argc, char** argv, AloneFunction train);

/// Stage 03: starts this program once per rank, with RANK, LOCAL_RANK, WORLD_SIZE and
/// DDP_STORE_FILE in the environment, and waits. The first failure ends the other ranks; SIGTERM,
/// SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded; no rank outlives this process, even if it is
/// killed. Each rank prints its own errors.
/// @return the first failing rank's exit code (128 + signal if a signal ended it), else 85 if the
/// ranks stopped on request, else 0
int spawn(int argc, char** argv, TrainFunction train, const ExtraOptions& extra = {});

/// The part of spawn() that starts this program `world_size` times and waits, for a program with a
/// command line of its own. Every rank gets `argv`, and finds out by read_launch_environment() that
/// it is one. Before any thread exists.
/// @param program name that stands before messages
/// @param held_signals blocked when a rank begins
/// @return as spawn() @throws TransientError if a process cannot be started
int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals = {});

/// Stages 04 and 05: a launcher started this process and says which rank it is.
/// @return as run_alone()
int run_rank(int argc, char** argv, TrainFunction train, const ExtraOptions& extra = {});
/// The same for a program that reads its command line itself.
int run_rank(const std::function<void(const LaunchEnvironment&)>& train);

/// Calls `action` after `train` has returned or thrown, its local objects are gone, and its error
/// is printed. Give up here what other ranks would miss, such as the store that rank 0 serves.
void at_train_end(std::function<void()> action);

/// The process ends after the actions of at_train_end() without static destructors: threads that
/// nobody can join still run.
void skip_destructors_at_exit();

/// Replaces the message of an exception that leaves a thread, such as NCCL's watchdog, by
/// `explain(message)`. The process prints it as one line, waits a moment in which other ranks may
/// read the store that it serves, and exits.
void explain_thread_errors(std::function<std::string(const std::string& what)> explain);

}  // namespace ddp
