// common/launch/stop_request.hpp - what signals do to a run: above all, ask it to stop.
#pragma once

namespace ddp {

/// From now on SIGUSR1 and SIGUSR2 ask the run to stop at the end of the epoch, also those that
/// came while they were blocked. A signal that was ignored stays ignored, in all functions here.
void remember_user_signals();

/// From now on SIGTERM does the same. Call it when there is something to save.
void watch_for_stop_request();

/// The signal that asked, 0 if none did.
int stop_request();

/// From now on SIGPIPE no longer ends this process: a broken connection is an error of the call,
/// also in libraries that write without MSG_NOSIGNAL (Gloo).
void survive_broken_connections();

/// From now on SIGTERM ends this process with code 1. When a task fails, srun --kill-on-bad-exit
/// ends the others with SIGTERM, and its own exit code is the highest of all: 143 for a task that
/// the signal ended would hide the failure.
void exit_on_sigterm();

}  // namespace ddp
