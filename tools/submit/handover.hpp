// tools/submit/handover.hpp - has jobs run, so that none is ever lost or run twice.
#pragma once

#include <string>
#include <vector>

#include "tools/submit/state.hpp"

namespace ddp::submit {

/// Writes the job's folder and submission file and gives it to its scheduler. The state says how
/// far that came at every moment; see Note [No locks].
/// @return why it was left out; empty: it is submitted
/// @throws Error if the scheduler refused it, TransientError if it is not known whether it took it
std::string submit_job(State& state, int index);

/// Runs jobs on this machine, one after another, in the foreground, each in its own folder with its
/// output in files there. A job that exits with 85, stopped with a good snapshot, is started again.
/// SIGINT, SIGTERM and SIGHUP are handed on to the running job; the rest then stays "planned". A
/// job that fails or is cancelled does not keep the others from running. One that others have
/// cancelled or submitted meanwhile is left out.
/// @return the exit code for the program: 0 if all are done
int run_local_jobs(State& state, const std::vector<int>& indices);

/// Asks the schedulers about all jobs that are not over, and about submissions that were cut off,
/// and records the answers.
/// @return one line for each scheduler that could not be asked
std::vector<std::string> refresh(State& state);

/// In the job's own folder, because only there no other submission writes: that one may be under
/// way at the same time, and a scheduler reads the file when it comes to it.
std::string submission_path(const JobRequest& job, const std::string& out_dir);

/// A single job's submission file is in the out_dir too. What lies there may have its name.
/// @throws UsageError if it is not made by submit
void check_submission_file(const JobRequest& job, const std::string& out_dir);

}  // namespace ddp::submit
