// common/launch/run_main.hpp - from main() to `train`, and from an exception to an exit code.
#pragma once

#include <functional>
#include <string>

#include "common/launch/spawn.hpp"

namespace ddp::internal {

/// Runs `body` and makes of an exception one line on stderr, "<program>: error: [rank 2] message",
/// an exit code, and what torchrun reads to name the root cause. What stdout did not take is an
/// error too. An Error without a message exits in silence: another rank has the message.
/// @param body returns the exit code; writes "[rank 2] " into its argument once it knows
int guarded(int argc, char** argv, const std::function<int(std::string& who)>& body);

/// Note [One line]: a mistake of the user's, a missing data file say, is seen by all ranks at once,
/// and the end of one rank by all others. The ranks of spawn() share a pipe with one byte; whoever
/// reads it has the pen and writes the line, the others exit in silence.
/// @param fd of that pipe
bool take_pen(int fd);

/// Ends the process, without destructors, if `code` is that of a usage error; else returns it.
int leave_if_refused(int code);

/// @throws UsageError if a launcher started several of a program that is to be started once
/// @param why "is one process"
void refuse_several(const Options& options, const LaunchEnvironment& environment, const char* why);

/// Parses the command line, finds out this process's rank, and trains (or prints, with --dump-env).
int run_main(int argc, char** argv, Launch launch, TrainFunction train);

}  // namespace ddp::internal
