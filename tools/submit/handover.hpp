// tools/submit/handover.hpp - hands jobs over, so that none is ever lost or submitted twice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/submit/presence.hpp"
#include "tools/submit/state.hpp"

namespace ddp::submit {

/// Begins the next attempt of a job, unless another submit does, or has ended it meanwhile.
/// @param finding what is recorded, @param id see State::begin
/// @param presence says, from before the record until it goes, that this process is at it
/// @return why the job is to be left out; empty: it is this process's
std::string take(State& state, int index, const Finding& finding, const std::string& id,
                 std::optional<Presence>& presence);

/// Writes the job's folder and submission file and gives it to its scheduler. The state says how
/// far that came at every moment; see Note [No locks].
/// @return why it was left out; empty: it is submitted
/// @throws Error if the scheduler refused it, TransientError if it is not known whether it took it
std::string submit_job(State& state, int index);

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
