// tools/submit/process.hpp - starts a process, with an argument vector and never a shell.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace ddp::submit {

struct ProcessOptions {
  std::string cwd;  ///< empty: this process's
  int out = -1;  ///< becomes its standard output
  int err = -1;  ///< becomes its standard error, where a failure to start it is written too
  int inherited_fd = -1;  ///< stays open in it
  /// A process group of its own, which Ctrl-C does not reach, and SIGTERM when this process ends.
  bool own_group = false;
  sigset_t signal_mask{};
};

/// argv[0] is a path, or a name that PATH finds. If it cannot be run, it exits with 127.
/// @throws Error if there is no process for it
pid_t start_process(const std::vector<std::string>& argv, const ProcessOptions& options);

struct CommandResult {
  bool started = false;
  std::string out;
  std::string failure;  ///< one line: why it has no good answer; empty if it exited with 0

  bool ok() const { return failure.empty(); }
};

struct CommandOptions {
  std::string cwd;
  double timeout_s = 60;
  int inherited_fd = -1;
};

/// Runs a scheduler's command and waits for its end.
CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options = {});

/// The path of `name`, which is one already or looked up in PATH; empty if it is not there.
std::string find_program(const std::string& name);

}  // namespace ddp::submit
