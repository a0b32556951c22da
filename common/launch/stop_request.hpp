// common/launch/stop_request.hpp - what signals do to a run: above all, ask it to stop.
#pragma once

namespace ddp {

/// From now on SIGUSR1 and SIGUSR2 no longer end this process: they ask the run to stop at the end
/// of the epoch, also those that came while they were blocked. A signal that was ignored stays so.
void remember_user_signals();

/// From now on SIGTERM does the same. Not before there is something to save.
void watch_for_stop_request();

/// The signal that asked, 0 if none did.
int stop_request();

/// From now on SIGPIPE no longer ends this process, unless nobody reads its output: a connection
/// that broke since a peer died is for the call to tell, with a message, also in libraries that
/// write without MSG_NOSIGNAL (Gloo).
void survive_broken_connections();

/// Note [Slurm's exit code]: when a task fails, `srun --kill-on-bad-exit` ends the others with
/// SIGTERM, and its own exit code is the highest of all: 143 for each task that the signal ended,
/// which hides the failure. So a rank that has nothing to save yet leaves with 1 instead.
void exit_on_sigterm();

}  // namespace ddp
