// tools/submit/commands.hpp - what submit does, one function per command.
#pragma once

#include "tools/submit/command_line.hpp"

namespace ddp::submit {

/// Prints on standard output, notes on standard error.
/// @return the program's exit code
/// @throws Error
int run(const CommandLine& line);

}  // namespace ddp::submit
