// common/launch/run_main.hpp - turns an exception into a line and an exit code, for programs with a
// command line of their own.
#pragma once

#include <functional>
#include <string>

#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/launch/options.hpp"

namespace ddp::internal {

/// Every program's main(). Opens closed standard streams, and ignores SIGPIPE and SIGXFSZ. Runs
/// `body`, then the actions of at_train_end(). Turns an exception into an exit code, a line on
/// stderr, "<program>: error: [rank 2] message", and the file in which torchrun looks for the root
/// cause.
/// @param body returns the exit code; writes "[rank 2] " into its argument once the rank is known
int guarded(const std::function<int(std::string& who)>& body);

/// "[rank 2] ", or nothing in a world of one process.
std::string name_of_rank(const LaunchEnvironment& environment);

/// Refuses launchers that started several processes. @throws UsageError
/// @param why "is one process"
void refuse_several(const std::string& program, const LaunchEnvironment& environment,
                    const char* why);

/// main() of a stage's process: parses the command line, reads the launch environment, and trains.
/// @param train returns kDone or kRunAgain
int run_main(
    int argc, char** argv, Launch launch, const ExtraOptions& extra,
    const std::function<ExitCode(const Options& options, const LaunchEnvironment&)>& train);

}  // namespace ddp::internal
