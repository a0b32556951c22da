// bench/run/child_process.hpp - runs one command with a time limit and leaves no process behind.
#pragma once

#include <signal.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/run/peer_servers.hpp"
#include "bench/run/progress.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/launch/gpu_monitor.hpp"

namespace ddp::bench {

/// Turns SIGINT, SIGTERM and SIGHUP into a question that can be asked between two steps of the
/// work. Nothing is done inside a signal handler: the signals stay blocked in this process (the
/// children get the mask back that this process was started with).
class Interrupts {
 public:
  Interrupts() { signal(SIGCHLD, SIG_DFL); }  // ignored, it would make the exit codes vanish

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

/// What all runs share. One lives as long as anything is run.
struct Session {
  Interrupts interrupts;
  ScratchFolder scratch{"ddp-bench"};
  PeerServers peers{scratch.path()};
  Progress progress;
  GpuMonitor gpus;
};

struct Command {
  std::vector<std::string> argv;  ///< argv[0] is a path, or a name looked up in PATH
  double timeout_s = 120;
  std::string cwd = "";  ///< empty: this process's
  std::map<std::string, std::string> env = {};  ///< set on top of this process's environment
};

/// What surrounded a command while it ran.
struct LaunchConditions {
  std::string started;  ///< UTC, "2026-11-23T16:20:00Z"
  std::optional<double> steal_share;  ///< of the processors' time: a hypervisor's
  std::optional<double> others_busy_share;  ///< likewise: other programs'
  std::string affinity;  ///< cores, "0-3,8"
  std::string scheduling;  ///< scheduling_class()
};

/// What the GPUs that were watched took together at a moment.
struct GpuPower {
  double unix_ms = 0;
  double power_w = 0;
};

struct ChildResult : ProcessEnd {
  bool timed_out = false;
  bool interrupted = false;  ///< stopped because this program is to end
  double seconds = 0;
  double start_unix_ms = 0;
  LaunchConditions conditions;
  std::vector<GpuPower> gpu_power;  ///< over time
  std::string out;  ///< the end of its standard output, 64 KiB at most
  std::string err;

  bool ok() const { return exit_code == 0 && !timed_out && !interrupted; }
};

/// Runs `command` in its own process group. Variables by which a launcher tells a process its rank
/// are taken out of its environment: a stage that is started here is started by nobody else. When
/// the time is over, or on an interrupt, it gets SIGTERM, a few seconds later whatever descends
/// from it gets SIGKILL. Meanwhile progress is shown and the GPUs are watched.
/// @throws Error if the process cannot be made
ChildResult run_child(const Command& command, Session& session);

/// How it ended, and the line of its standard error that most likely tells why. Never empty.
std::string describe_failure(const ChildResult& result, double timeout_s);

}  // namespace ddp::bench
