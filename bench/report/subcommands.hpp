// bench/report/subcommands.hpp - the commands of bench that measure nothing.
#pragma once

#include <optional>

namespace ddp::bench {

/// Runs `bench compare ...`, `bench html ...` or `bench predict ...`.
/// @return the exit code; nothing if the command line is about measuring
/// @throws UsageError
std::optional<int> run_subcommand(int argc, const char* const* argv);

}  // namespace ddp::bench
