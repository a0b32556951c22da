// tools/submit/local_process.hpp - the process of a local job: started, told to stop, waited for.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>

#include "tools/submit/scheduler.hpp"

namespace ddp::submit {

/// Nothing is done in a handler: the signals stay blocked here and are waited for.
class SignalWait {
 public:
  SignalWait();
  ~SignalWait();
  SignalWait(const SignalWait&) = delete;
  SignalWait& operator=(const SignalWait&) = delete;

  /// @return the signal, or 0 after a while without one
  int wait() const;
  /// Takes away a SIGTERM that nobody has waited for.
  static void forget_sigterm();
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

struct ProcessEnd {
  Finding finding;
  bool terminated = false;  ///< by a SIGTERM, which `submit cancel` sends too
  bool interrupted = false;  ///< by the user, who wants no further job either
};

/// Starts a job's command in `folder`, with its output in files there. It ends if this process
/// does.
/// @throws Error
pid_t start_process(const Job& job, const std::string& folder, const SignalWait& signals);

/// Hands SIGINT, SIGTERM and SIGHUP on until the process has ended, and ends what it left behind.
/// @throws Error if nobody can know how it ended
ProcessEnd wait_for(pid_t pid, const SignalWait& signals);

}  // namespace ddp::submit
