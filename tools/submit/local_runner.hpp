// tools/submit/local_runner.hpp - runs jobs on this machine, one after another, in the foreground.
#pragma once

#include <vector>

#include "tools/submit/state.hpp"

namespace ddp::submit {

/// Runs jobs, each in its own folder with its output in files there. A job that exits with 85,
/// stopped with a good snapshot, is started again. SIGINT, SIGTERM and SIGHUP are handed on to the
/// running job; the rest then stays "planned". A job that fails or is cancelled does not keep the
/// others from running. One that others have cancelled or submitted meanwhile is left out.
/// @return the exit code for the program: 0 if all are done
int run_local_jobs(State& state, const std::vector<int>& indices);

}  // namespace ddp::submit
