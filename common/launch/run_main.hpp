// common/launch/run_main.hpp - from main() to `train`, and from an exception to an exit code.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "common/launch/spawn.hpp"

namespace ddp::internal {

/// Runs `body` and makes of an exception one line on stderr, "<program>: error: [rank 2] message",
/// an exit code, and what torchrun reads to name the root cause. What stdout did not take is an
/// error too. An Error without a message exits in silence: another rank has the message. Then calls
/// the actions of at_train_end().
/// @param body returns the exit code; writes "[rank 2] " into its argument once it knows
int guarded(int argc, char** argv, const std::function<int(std::string& who)>& body);

/// Note [One line]: a mistake of the user's, a missing data file say, is seen by all ranks at once,
/// and the end of one rank by all others. The ranks of spawn() hand their lines to the parent, who
/// prints one: the cause. Which one that is, is settled by order. A rank says why it goes before it
/// gives up what connects it with the others (at_train_end() is for that), so a line that another
/// rank's end brought about comes after the line of that rank. A rank that could say nothing, since
/// a signal killed it, is ending or has ended before any line about it comes; but a rank may also
/// be aborted because of one that has said why. So whoever says something adds who was ending then.
struct RankError {
  int code = 0;  ///< with which it is about to exit
  std::vector<pid_t> ending;  ///< the parent's children
  std::string line;
};

/// A longer line is cut: as a message of a socket it must fit into the kernel's buffer.
inline constexpr size_t kMostErrorBytes = size_t{1} << 16;
/// One message of the socket DDP_ERROR_FD.
std::string to_text(const RankError& error);
RankError rank_error_from(const std::string& text);

/// Ends the process, without destructors, if `code` is that of a usage error; else returns it.
int leave_if_refused(int code);

/// @throws UsageError if a launcher started several of a program that is to be started once
/// @param why "is one process"
void refuse_several(const Options& options, const LaunchEnvironment& environment, const char* why);

/// Parses the command line, finds out this process's rank, and trains (or prints, with --dump-env).
int run_main(int argc, char** argv, Launch launch, TrainFunction train);

}  // namespace ddp::internal
