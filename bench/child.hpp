// bench/child.hpp - runs one command with a time limit, and leaves no process behind.
#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/progress.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/launch/gpu_monitor.hpp"

namespace ddp::bench {

/// Turns SIGINT, SIGTERM and SIGHUP into a question that is asked between two pieces of work. They
/// stay blocked in this process; children get the mask that bench was started with.
class Interrupts {
 public:
  Interrupts() { signal(SIGCHLD, SIG_DFL); }  // ignored, it would make exit codes vanish

  /// True from the first signal on.
  bool requested() {
    wait(0, /*except=*/SIGCHLD);
    return requested_;
  }
  /// Sleeps until a child changes state, a signal comes, or the time is over.
  void wait_for_child(double seconds) { wait(seconds, /*except=*/0); }

  const sigset_t& original_mask() const { return signals_.original(); }

 private:
  void wait(double seconds, int except) {
    const int signal = signals_.wait(seconds, except).si_signo;
    requested_ = requested_ || (signal > 0 && signal != SIGCHLD);
  }

  BlockedSignals signals_{{SIGINT, SIGTERM, SIGHUP, SIGCHLD}, BlockedSignals::Until::kForever};
  bool requested_ = false;
};

/// What all runs share.
struct Session {
  Interrupts interrupts;
  ScratchFolder scratch{"ddp-bench"};
  Progress progress;
  GpuMonitor gpus;
};

/// Counters of the processors' time, in seconds of all of them; only differences mean something.
struct ProcessorTimes {
  double total_s = 0;  ///< idle or not
  double busy_s = 0;
  double own_s = 0;  ///< of bench, and of what it started and waited for
};
/// Nothing if the kernel does not tell.
std::optional<ProcessorTimes> processor_times();
/// Share of the processors' time that other programs used.
std::optional<double> others_share(const std::optional<ProcessorTimes>& begin,
                                   const std::optional<ProcessorTimes>& end);

struct Command {
  std::vector<std::string> argv;
  double timeout_s = 120;
  std::string cwd = "";  ///< empty: this process's
  std::map<std::string, std::string> env = {};  ///< set on top of this process's environment
};

struct ChildResult : ProcessEnd {
  bool timed_out = false;
  bool interrupted = false;
  double start_unix_ms = 0;
  std::string started;  ///< UTC, "2026-01-02T03:04:05Z"
  double seconds = 0;
  std::string out;
  std::string err;

  bool ok() const { return exit_code == 0 && !timed_out && !interrupted; }
  /// How it ended, and the line of its standard error that most likely tells why. Never empty.
  std::string failure() const;
};

/// Runs the command in a process group of its own, without the variables by which launchers tell a
/// process its rank. At its timeout or on an interrupt it gets SIGTERM, a few seconds later all
/// that descends from it SIGKILL.
ChildResult run_child(const Command& command, Session& session);

}  // namespace ddp::bench
