// common/launch/spawn.hpp - the program starts itself once per rank, and the two other ways to
// enter a stage.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// What a stage does: `environment` says which rank it is.
using TrainFunction = void (*)(const Options& options, const LaunchEnvironment& environment);

/// Has `action` called when `train` has returned or thrown, its local objects are gone, and its
/// error, if there is one, was said. What other ranks would miss is to be given up here: whoever
/// notices then is not the first to speak.
void at_train_end(std::function<void()> action);

/// Has the process end after the actions of at_train_end() without static destructors: threads that
/// nobody can join still run.
void skip_destructors_at_exit();

/// Has `explain` make another message of that of an exception which leaves a thread, such as NCCL's
/// watchdog. It is one line and an exit code like one of `train`'s, but ends the process then and
/// there; after a moment, in which the others may ask the store that this process serves.
void explain_thread_errors(std::function<std::string(const std::string& what)> explain);

/// Stages 01 and 02: this process is the only one. Refuses to run under a launcher that started
/// several.
/// @return the exit code; an error is one line on stderr
int run_alone(int argc, char** argv, TrainFunction train);

/// Stage 03: starts this program once per rank, with RANK, LOCAL_RANK, WORLD_SIZE and the store's
/// address in the environment, and waits. The first failure ends the other ranks; SIGTERM, SIGINT,
/// SIGHUP, SIGUSR1 and SIGUSR2 are forwarded; no rank outlives this process, even if it is killed.
/// @return the first failing rank's exit code (128 + signal if it was killed), else 85 if the ranks
/// stopped on request, else 0
int spawn(int argc, char** argv, TrainFunction train);

/// The part of spawn() that starts this program `world_size` times and waits, for a program with a
/// command line of its own. Every rank gets `argv`, and finds out by read_launch_environment() that
/// it is one. Before any thread exists.
/// @param program name that stands before messages
/// @param held_signals blocked when a rank begins
/// @return as spawn() @throws TransientError if there is no port or no process to be had
int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals = {});

/// Stages 04 and 05: a launcher started this process and says which rank it is.
/// @return as run_alone()
int run_rank(int argc, char** argv, TrainFunction train);
/// The same for a program with a command line of its own, which it reads itself.
int run_rank(int argc, char** argv, const std::function<void(const LaunchEnvironment&)>& train);

}  // namespace ddp
