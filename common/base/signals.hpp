// common/base/signals.hpp - effects of signals on this process.
#pragma once

namespace ddp {

/// From now on SIGUSR1 and SIGUSR2 ask the run to stop at the end of the epoch, also if they came
/// while they were blocked. In all functions here an ignored signal stays ignored.
void remember_user_signals();

/// From now on SIGTERM does the same. Call it once there is something to save.
void watch_for_stop_request();

/// @return the signal that asked the run to stop, or 0
int stop_request();

/// From now on SIGPIPE no longer ends this process: a reader that has gone is an error of the call,
/// also in libraries that write without MSG_NOSIGNAL (Gloo).
void survive_broken_connections();

/// From now on SIGTERM ends this process with code 1. When a task fails, srun --kill-on-bad-exit
/// ends the other tasks with SIGTERM, and its own exit code is the highest of all tasks. Code 143
/// of a task ended by the signal would hide the failure.
void exit_on_sigterm();

}  // namespace ddp
