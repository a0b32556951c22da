// tools/submit/commands.hpp - submit as a function.
#pragma once

namespace ddp::submit {

/// Does what the command line says. Prints on standard output, notes on standard error.
/// @return the program's exit code
/// @throws Error
/// @throws Answered see parse_command_line
int run(int argc, const char* const* argv);

}  // namespace ddp::submit
