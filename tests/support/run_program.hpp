// tests/support/run_program.hpp - runs a program without a shell and collects everything it says.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddp::test {

struct RunResult {
  int exit_code = -1;  ///< -1: ended by a signal
  int signal = 0;  ///< the signal that ended it, or 0
  std::string out;
  std::string err;  ///< empty with merge
  double seconds = 0;
  double cpu_seconds = 0;  ///< of the program and those of its children that it waited for
  bool timed_out = false;
};

struct RunOptions {
  std::map<std::string, std::optional<std::string>>
      environment;  ///< overrides; std::nullopt: unset
  bool clear_environment = false;  ///< start from an empty environment instead of ours
  std::string cwd;  ///< empty: ours
  double timeout_seconds = 60;
  bool merge = false;  ///< stderr goes where stdout goes, in order
};

/// A running program in a process group of its own. The group is killed when the object goes.
class Program {
 public:
  /// @param argv argv[0] is a path, or a name that PATH finds
  /// @throws std::runtime_error if it cannot be started
  explicit Program(const std::vector<std::string>& argv, const RunOptions& options = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }

  /// Reads until the program has printed `text` on stdout. @return false if it ended or the timeout
  /// passed first
  bool wait_for_output(const std::string& text);
  /// Reads until the program has ended and its streams are closed; kills the group at the timeout.
  RunResult wait();

 private:
  double elapsed() const;
  bool read_some(double until_seconds);
  void kill_group() const;

  pid_t pid_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  double timeout_seconds_;
  double start_seconds_;
  RunResult result_;
};

/// Runs the program to its end.
RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options = {});

}  // namespace ddp::test
