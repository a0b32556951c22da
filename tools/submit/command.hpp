// tools/submit/command.hpp - runs a scheduler's command, with an argument vector and never a shell.
#pragma once

#include <string>
#include <vector>

namespace ddp::submit {

struct CommandResult {
  bool started = false;
  int exit_code = -1;  ///< -1: it did not exit by itself
  bool timed_out = false;
  std::string out;
  std::string err;
  std::string failure;  ///< one line: why it has no good answer; empty if it exited with 0

  bool ok() const { return failure.empty(); }
};

struct CommandOptions {
  std::string cwd;  ///< empty: this process's
  double timeout_s = 60;
  int inherited_fd = -1;  ///< stays open in the command
};

/// Runs argv[0], which is a path or a name looked up in PATH, and waits for it.
CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options = {});

/// The path of `name`, looked up in PATH; empty if it is not there.
std::string find_program(const std::string& name);

}  // namespace ddp::submit
