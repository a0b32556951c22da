// bench/run/session.hpp - what all parts of one measurement share.
#pragma once

#include <signal.h>

#include "bench/run/gpu_monitor.hpp"
#include "bench/run/progress.hpp"
#include "bench/run/settings.hpp"
#include "common/base/process.hpp"
#include "common/base/scratch_folder.hpp"

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

/// One lives as long as anything is run.
struct Session {
  const Settings& settings;
  Interrupts interrupts{};
  ScratchFolder scratch{"ddp-bench"};
  Progress progress{};
  GpuMonitor gpus{};
};

}  // namespace ddp::bench
