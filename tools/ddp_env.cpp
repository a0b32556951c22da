// ddp-env - prints the rank of this process and the variables that say so. Start it like a stage.
#include <iostream>

#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/run_main.hpp"
#include "common/meet/launch.hpp"

int main(int argc, char** argv) {
  return ddp::run_program([argc, argv](std::string&) {
    bool json = false;
    ddp::CommandLine line(
        "ddp-env",
        "Prints the rank, world size and store that a stage would find in this environment, and "
        "why.",
        "ddp-env " DDP_VERSION,
        "Examples: torchrun --nproc-per-node=2 --no-python ddp-env; srun -n4 ddp-env --json\n"
        "Exit codes: 0 found, 2 the environment contradicts itself.",
        30);
    line.group("Options").flag("--json", json, "print a JSON line");
    line.parse(argc, argv);
    std::cout << ddp::describe(ddp::read_launch_environment(), json);
    return static_cast<int>(ddp::ExitCode::kDone);
  });
}
