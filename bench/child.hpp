// bench/child.hpp - runs a command with a time limit, and leaves no process behind.
#pragma once

#include <cmath>
#include <csignal>

#include "common/base/process.hpp"
#include "common/base/progress_bar.hpp"
#include "common/device/gpu_monitor.hpp"

namespace ddp::bench {

/// Draws a bar on a terminal; elsewhere prints a line now and then.
class Progress {
 public:
  /// @param runs number of launches; the estimate of the time left assumes equally long launches
  void begin(int runs) {
    runs_ = runs;
    begin_ = last_line_ = std::chrono::steady_clock::now();
  }

  void start(const std::string& what) {
    constexpr double kSecondsBetweenLines = 15;
    const double left_s = seconds_since(begin_) / std::max(done_, 1) * (runs_ - done_);
    const std::string left =
        done_ < 3 ? "" : fmt::format(", about {:.0f} s left", std::ceil(left_s));
    if (on_terminal_) {
      line_.show(fmt::format("{:.99}", fmt::format("{} {}/{}{}  {}", drawn_bar(done_, runs_), done_,
                                                   runs_, left, what)));
    } else if (seconds_since(last_line_) >= kSecondsBetweenLines) {
      last_line_ = std::chrono::steady_clock::now();
      note(fmt::format("{} of {} runs{}", done_, runs_, left));
    }
  }

  void finish() { ++done_; }
  void clear() { line_.hide(); }

  /// Prints a line above the bar.
  void note(const std::string& line) {
    line_.hide();
    std::fputs((line + "\n").c_str(), stderr);
  }

 private:
  const bool on_terminal_ = stderr_is_terminal();
  StatusLine line_;
  int runs_ = 0;
  int done_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_line_;
};

/// State that all runs share. Blocks the signals in this process; children get the original mask.
struct Session {
  Session() { std::signal(SIGCHLD, SIG_DFL); }  // if ignored, there would be no exit codes

  /// Waits until a child ends or an interrupt comes, but not longer than that.
  void wait(double seconds) {
    const int signal = signals.wait(seconds).si_signo;
    interrupted |= signal > 0 && signal != SIGCHLD;
  }

  BlockedSignals signals{{SIGINT, SIGTERM, SIGHUP, SIGCHLD}};
  bool interrupted = false;  ///< by a signal
  ScratchFolder scratch{"ddp-bench"};
  Progress progress;
  GpuMonitor gpus;
};

struct Command {
  std::vector<std::string> argv;
  double timeout_s = 120;
  std::string cwd = "";  ///< empty: this process's
  std::map<std::string, std::optional<std::string>> env = {};  ///< added to this process's
  bool is_users = false;  ///< keeps what the user has set for Python
};

struct ChildResult : CaptureResult {
  bool interrupted = false;
  std::time_t started = 0;
  std::int64_t start_ns = 0;  ///< on the steady clock

  bool ok() const { return exit_code == 0 && !timed_out && !interrupted; }
  /// Description of its end, with the most informative line of its standard error. Never empty.
  std::string failure() const;
};

/// Runs the command in a process group of its own, without launchers' variables for ranks. At its
/// timeout or on an interrupt the group gets SIGTERM, and 5 s later all its descendants SIGKILL.
ChildResult run_child(const Command& command, Session& session);

}  // namespace ddp::bench
