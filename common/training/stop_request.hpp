// common/training/stop_request.hpp - a signal that ends a run after its epoch, with exit code 85.
#pragma once

#include "common/parallel/collective_log.hpp"

namespace ddp {

/// True if SIGTERM, SIGUSR1 or SIGUSR2 came to any rank since load_snapshot(). Save then, and
/// return ExitCode::kRunAgain. Collective if there is a process group: the ranks agree, because a
/// signal may reach them at different moments, or only some of them.
bool stop_requested(const CallSite& site = CallSite::current());

}  // namespace ddp
