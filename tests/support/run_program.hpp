// tests/support/run_program.hpp - runs a program as a test wants it: what it says is collected, and
// nothing of it is left.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/process.hpp"

namespace ddp::test {

using RunResult = CaptureResult;

struct RunOptions {
  std::map<std::string, std::optional<std::string>>
      environment;  ///< overrides; std::nullopt: unset
  bool clear_environment = false;  ///< start from an empty environment instead of ours
  std::string cwd;  ///< empty: ours
  double timeout_seconds = 60;
  bool merge = false;  ///< stderr goes where stdout goes, in order
};

/// A running program in a process group of its own. The group is killed when the object goes.
class Program : public CapturedProcess {
 public:
  /// @param argv argv[0] is a path, or a name that PATH finds
  /// @throws std::runtime_error if it cannot be started
  explicit Program(const std::vector<std::string>& argv, const RunOptions& options = {});
};

/// What stands between blanks: "a  b c" -> {"a", "b", "c"}
std::vector<std::string> words(const std::string& line);

/// How often a test of something random tries it: $DDP_TEST_REPEATS, or 5.
int repeats();

/// Runs the program to its end.
RunResult run_program(const std::vector<std::string>& argv, const RunOptions& options = {});

}  // namespace ddp::test
