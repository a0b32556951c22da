// common/base/exit_codes.hpp - exit codes, and the errors that lead to them.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ddp {

/// Exit codes of every program of the suite; scripts and schedulers act on them.
enum class ExitCode : int {
  kDone = 0,
  kTrainingFailed = 1,
  kUsage = 2,  ///< command line, environment, configuration or data
  kSnapshotRefused = 3,  ///< a snapshot is there, but it is damaged or belongs to another run
  kTransient = 75,  ///< port or rendezvous: the same command may work later
  kRunAgain = 85,  ///< stopped with a good snapshot: start the same command again
};

/// An error and its exit code, "Error (3)" in comments. `what()` is one line: what is wrong, its
/// value, what was expected.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// The user's mistake: exit code 2.
struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};

/// A port, a peer or a rendezvous that was not there: exit code 75.
struct TransientError : Error {
  explicit TransientError(const std::string& message) : Error(ExitCode::kTransient, message) {}
};

/// @throws UsageError: what is wrong, its value, what was expected
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) {
  throw UsageError(fmt::format(message, std::forward<Args>(args)...));
}

}  // namespace ddp
