// ddp-env - prints which rank this process is and which variables say so. Start it as you would
// start a stage.
#include <iostream>
#include <string_view>

#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/launch/run_main.hpp"

namespace {

constexpr const char* kVersion = "ddp-env " DDP_VERSION "\n";
constexpr const char* kUsage =
    "Usage: ddp-env [--json]\n"
    "Prints the rank, world size and store that a stage would find in this environment, and why.\n"
    "Also: --version, --help.\n"
    "Examples: torchrun --nproc-per-node=2 --no-python ddp-env; srun -n4 ddp-env --json\n"
    "Exit codes: 0 found, 1 stdout cannot be written, 2 the environment contradicts itself.\n";

std::string answer(int argc, char** argv) {
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      return kUsage;
    }
    if (argument == "--version") {
      return kVersion;
    }
    if (argument != "--json") {
      throw ddp::UsageError("got " + ddp::quote(argument) +
                            ", expected --json, --version, --help or nothing");
    }
    json = true;
  }
  return ddp::describe(ddp::read_launch_environment(ddp::Options()), json);
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::internal::guarded(argc, argv, [argc, argv](std::string&) {
    std::cout << answer(argc, argv);
    return static_cast<int>(ddp::ExitCode::kDone);
  });
}
