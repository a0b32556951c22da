// common/launch/run_main.hpp - main() of every program: errors become a line and an exit code.
#pragma once

#include <functional>

#include "common/base/exit_codes.hpp"
#include "common/launch/options.hpp"
#include "common/meet/launch.hpp"

namespace ddp {

/// A stage's train function. It returns kDone, or kRunAgain if it stopped on request and saved.
using AloneFunction = ExitCode (*)(const Options& options);
using TrainFunction = std::function<ExitCode(const Options&, const LaunchEnvironment&)>;

/// Runs stages 01 and 02, one process: refuses launchers that started several.
/// @return the exit code; an error is one line on stderr
int run_alone(int argc, char** argv, AloneFunction train);

/// main() of every program. Opens closed standard streams, and ignores SIGPIPE and SIGXFSZ. Runs
/// `body`, then the actions of at_train_end(). Turns an exception into an exit code, a line on
/// stderr, "<program>: error: [rank 2] message", and the file in which torchrun looks for the root
/// cause.
/// @param body returns the exit code; writes "[rank 2] " into its argument once the rank is known
int run_program(const std::function<int(std::string& who)>& body);

/// "[rank 2] ", or nothing in a world of one process.
std::string name_of_rank(const LaunchEnvironment& environment);

/// Refuses launchers that started several processes. @throws UsageError
/// @param why "is one process"
void refuse_several(const std::string& program, const LaunchEnvironment& environment,
                    const char* why);

/// Runs stages 04 and 05: a launcher started this process and gives its rank.
/// @return the exit code; an error is one line on stderr
int run_rank(int argc, char** argv, const TrainFunction& train, const ExtraOptions& extra = {});
/// The same for programs that parse their command line themselves.
int run_rank(const std::function<void(const LaunchEnvironment&)>& train);

/// main() of a stage's process: parses the command line, reads the launch environment, and trains.
int run_main(int argc, char** argv, StartedBy started_by, const ExtraOptions& extra,
             const TrainFunction& train);

}  // namespace ddp
