// tools/submit/commands.hpp - what submit does, one function per command.
#pragma once

#include "tools/submit/command_line.hpp"

namespace ddp::submit {

/// Each prints on standard output, notes on standard error.
/// @return the program's exit code
/// @throws Error
int submit(const CommandLine& line);
int list(const CommandLine& line);
int status(const CommandLine& line);
int logs(const CommandLine& line);
int cancel(const CommandLine& line);
int resubmit(const CommandLine& line);

}  // namespace ddp::submit
