// common/base/process.hpp - starts programs, watches them, and says how they ended.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

#include "common/base/files.hpp"

namespace ddp {

/// Exit code of a program that could not be run, as in a shell.
inline constexpr int kCannotRunExitCode = 127;

/// The program is not there, or cannot be executed. `what()` is "cannot run NAME: reason".
struct CannotRun : std::system_error {
  using std::system_error::system_error;
};

struct ChildOptions {
  std::string program = "";  ///< file to execute; empty: argv[0], in PATH if it has no slash
  std::optional<std::vector<std::string>> environment = {};  ///< "NAME=value"; none: this process's
  std::string cwd = "";  ///< empty: this process's
  int out_fd = STDOUT_FILENO;  ///< its standard output
  int err_fd = STDERR_FILENO;  ///< its standard error
  int parent_death_signal = 0;  ///< sent when the thread that started it ends; 0: none
  std::optional<sigset_t> signal_mask = {};  ///< none: no signal is blocked
};

struct ProcessEnd {
  int exit_code = -1;  ///< -1: it did not exit by itself
  int signal = 0;  ///< signal that ended it
};

/// Running program in a process group of its own, with an empty standard input. The destructor
/// kills the whole group.
class Child {
 public:
  /// Returns once the program runs. No shell is involved.
  /// @throws CannotRun @throws std::system_error if no process can be started
  explicit Child(const std::vector<std::string>& argv, const ChildOptions& options = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Its process id, which is also its group's.
  pid_t pid() const { return pid_; }
  /// Sends a signal to its group, unless poll() has returned its end.
  void signal(int signal) const;
  /// Its end if it has ended, without waiting.
  std::optional<ProcessEnd> poll();

 private:
  pid_t pid_;
  std::optional<ProcessEnd> end_;
};

struct CaptureResult : ProcessEnd {
  bool timed_out = false;  ///< the timeout passed, and it was killed
  double seconds = 0;  ///< from its start to its end
  std::string out;
  std::string err;
};

/// Child with output to files in memory.
class CapturedChild {
 public:
  /// @param options without out_fd and err_fd @throws as Child()
  explicit CapturedChild(const std::vector<std::string>& argv, ChildOptions options = {});

  Child& child() { return child_; }
  /// What it has printed so far.
  std::string out() const { return content_of(out_); }
  std::string err() const { return content_of(err_); }
  /// Waits for its end, or kills it at the timeout. Then kills the processes left in its group.
  CaptureResult wait(double timeout_s = 60);

 private:
  static std::string content_of(const FileDescriptor& file);

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  FileDescriptor out_;
  FileDescriptor err_;
  Child child_;
};

/// This process's variables as "NAME=value".
/// @param changes new values by name; std::nullopt leaves the variable out
/// @param is_dropped true for each "NAME=value" to leave out; may be empty
std::vector<std::string> environment_with(
    const std::map<std::string, std::optional<std::string>>& changes,
    const std::function<bool(std::string_view)>& is_dropped = {});

bool is_executable(const std::string& path);
/// The path of a program, looked up in PATH.
std::optional<std::string> find_in_path(const std::string& name);

/// "signal 9 (Killed)"
std::string signal_name(int signal);

/// Blocks signals for good, so that they interrupt nothing, and waits for them.
class BlockedSignals {
 public:
  explicit BlockedSignals(const std::vector<int>& signals);

  /// Sleeps until a signal comes.
  /// @return its number (si_signo) and sender; number 0: no signal came in that time
  siginfo_t wait(std::optional<double> seconds) const;
  /// Stops this process by SIGTSTP, which is one of the signals. Returns when it goes on; at once
  /// if it has no shell that could let it go on, because its process group is orphaned.
  static void stop();
  /// Signal mask before the blocking, for child processes.
  const sigset_t& original() const { return original_; }

 private:
  sigset_t blocked_{};
  sigset_t original_{};
};

/// Largest resident set so far, in MiB; NaN if the kernel does not tell. getrusage() would also
/// count the memory that a launcher used before it executed this program.
double peak_rss_mib();

/// Processor time of all threads, in milliseconds.
inline double cpu_ms() {
  return static_cast<double>(std::clock()) * 1e3 / CLOCKS_PER_SEC;
}

/// Start time of this process, to the kernel's clock tick (usually 10 ms).
std::chrono::system_clock::time_point process_start();

}  // namespace ddp
