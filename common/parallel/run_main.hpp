// common/parallel/run_main.hpp - inside spawn: from main() to `train`, and from an exception to an
// exit code.
#pragma once

#include <functional>
#include <string>

#include "common/parallel/spawn.hpp"

namespace ddp::internal {

/// Runs `body` and makes of an exception one line on stderr, "<program>: error: [rank 2] message",
/// an exit code, and what torchrun reads to name the root cause. Flushes stdout.
/// @param body returns the exit code; writes "[rank 2] " into its argument once it knows
int guarded(int argc, char** argv, const std::function<int(std::string& who)>& body);

/// Ends the process, without destructors, if `code` is that of a usage error; else returns it.
int leave_if_refused(int code);

/// Parses the command line, finds out which rank this process is, and trains (or prints, with
/// --dump-env).
int run_main(int argc, char** argv, Launch launch, TrainFunction train);

}  // namespace ddp::internal
