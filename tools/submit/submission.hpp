// tools/submit/submission.hpp - hands jobs over, so that none is ever lost or submitted twice.
#pragma once

#include <string>

#include "tools/submit/state.hpp"

namespace ddp::submit {

/// Writes the job's folder and submission file and gives it to its scheduler. The state says how
/// far that came at every moment; see Note [Write-ahead].
/// @throws Error if the scheduler refused it, TransientError if it is not known whether it took it
void submit_job(StateFile& state, int index);

/// Finds out what became of a submission that was cut off: afterwards the job is submitted or
/// refused, or, if the scheduler cannot be asked, as before.
/// @return one line why the scheduler could not be asked; empty if it could
std::string settle(StateFile& state, int index);

/// The submission file of a job's next attempt, as submit_job would write it.
std::string submission_text(const StateFile& state, int index);
std::string submission_text(const JobRequest& job, const std::string& out_dir, int attempt,
                            const std::string& token);

/// The submission file lies in the user's folder, where something else may have its name.
/// @throws UsageError if so
void check_submission_file(const JobRequest& job, const std::string& out_dir);

/// In one step: whoever reads `path` finds the old text or the new one.
/// @throws Error if it cannot be written
void replace_file(const std::string& path, const std::string& text);

}  // namespace ddp::submit
