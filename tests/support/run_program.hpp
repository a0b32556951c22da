// tests/support/run_program.hpp - runs a program for a test, collects its output, and leaves no
// process behind.
#pragma once

#include "common/base/process.hpp"

namespace ddp::test {

using RunResult = CaptureResult;

/// Changes of an environment; std::nullopt: unset.
using Changes = std::map<std::string, std::optional<std::string>>;

struct RunOptions {
  Changes environment = {};
  std::string cwd = {};  ///< empty: ours
  double timeout_seconds = 60;
};

/// For mpirun.
inline const Changes kOpenMpiAsRoot = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                       {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};

/// Looks a hundred times a second. @return false if `holds()` is not true within the time
bool wait_until(double seconds, const std::function<bool()>& holds);

/// Running program in a process group of its own. The destructor kills the group.
class Program : public CapturedChild {
 public:
  /// @param argv argv[0] is a path, or a name that PATH finds
  /// @throws CannotRun
  explicit Program(const std::vector<std::string>& argv, const RunOptions& options = {});
  pid_t pid() { return child().pid(); }
  /// @return false if it did not print `text` within the time limit
  bool wait_for_output(const std::string& text) const;
  RunResult wait() { return CapturedChild::wait(timeout_seconds_); }

 private:
  double timeout_seconds_;
};

/// Words between blanks: "a  b c" -> {"a", "b", "c"}
std::vector<std::string> words(const std::string& line);

/// "A=1 B": A is set, B is not
Changes variables(const std::string& line);

/// Runs the program to its end.
RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options = {});

/// Checks that a program ended with `exit_code` and one line on stderr that has all `parts`.
void check_one_line(const RunResult& result, int exit_code, const std::vector<std::string>& parts);

std::vector<pid_t> children_of(pid_t parent);

/// True if none of the processes runs after at most that many seconds. Zombies do not count.
bool all_gone_within(const std::vector<pid_t>& pids, double seconds);

}  // namespace ddp::test
