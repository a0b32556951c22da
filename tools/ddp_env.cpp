// ddp-env - prints which rank this process is and which variables say so. Start it as you would
// start a stage.
#include <iostream>
#include <string_view>

#include "common/exit_codes.hpp"
#include "common/parallel/launch_environment.hpp"
#include "common/parse.hpp"

int main(int argc, char** argv) {
  const std::string usage =
      "Usage: ddp-env [--json]\n"
      "Prints the rank, world size and store that a stage would find in this environment, and "
      "why.\n"
      "Examples: torchrun --nproc-per-node=2 --no-python ddp-env; srun -n4 ddp-env --json\n"
      "Exit codes: 0 found, 2 the environment contradicts itself.\n";
  try {
    bool json = false;
    for (int i = 1; i < argc; ++i) {
      const std::string_view argument = argv[i];
      if (argument == "--help" || argument == "-h") {
        std::cout << usage;
        return 0;
      }
      if (argument != "--json") {
        throw ddp::UsageError("got " + ddp::quote(argument) + ", expected --json or nothing");
      }
      json = true;
    }
    std::cout << ddp::describe(ddp::read_launch_environment(ddp::Options()), json) << std::flush;
    return std::cout.good() ? 0 : static_cast<int>(ddp::ExitCode::kTrainingFailed);
  } catch (const ddp::Error& error) {
    std::cerr << std::string("ddp-env: error: ") + error.what() + "\n";
    return static_cast<int>(error.code());
  }
}
