// tools/submit/handover.hpp - has jobs run, so that none is ever lost or run twice.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/submit/state.hpp"

namespace ddp::submit {

/// What is written and run to submit jobs together.
struct SubmissionText {
  std::string folder;  ///< where the submission file and kPointsFile are, and the command is run
  std::string path;  ///< of the submission file
  std::string file;
  std::string points;  ///< empty: it is one job, in the job's own folder
  std::vector<std::string> command;  ///< without `path` behind it
};

/// A job alone has its file in its own folder, because only there no other submission writes: that
/// one may be under way at the same time, and a scheduler reads the file when it comes to it.
/// @param jobs as group() has them
/// @throws UsageError for what the scheduler cannot be given
SubmissionText submission_text(const std::vector<const JobRequest*>& jobs,
                               const std::string& out_dir, int plan, int batch, int attempt,
                               const std::string& token);

/// Puts together what one submission can hold.
/// @param indices of jobs of clusters
std::vector<std::vector<int>> group(const State& state, const std::vector<int>& indices);

/// The latest attempts of jobs when it was decided to have them run: what others do from then on
/// counts.
using Known = std::map<int, Attempt>;
Known attempts_of(const State& state, const std::vector<int>& indices);

/// Jobs that were not begun, and why.
using LeftOut = std::map<int, std::string>;

/// Writes the submission file of jobs that group() put together and gives it to their scheduler.
/// The state says how far that came at every moment; see Note [No locks].
/// @param after a submission that must be over before; may be empty
/// @throws Error if the scheduler refused it, TransientError if it is not known whether it took it
LeftOut submit_together(State& state, const std::vector<int>& indices, const Known& known,
                        const std::string& after);

/// Runs jobs on this machine, one after another, in the foreground, each in its own folder with its
/// output in files there. A job that exits with 85, stopped with a good snapshot, is started again.
/// SIGINT, SIGTERM and SIGHUP are handed on to the running job; the rest then stays "planned". A
/// job that fails or is cancelled does not keep the others from running. One that others have
/// cancelled or submitted meanwhile is left out.
/// @return the exit code for the program: 0 if all are done
int run_local_jobs(State& state, const std::vector<int>& indices);

/// Asks the schedulers about the jobs among these that are not over, and about submissions that
/// were cut off, and records the answers. Each scheduler is asked once, however many the jobs.
/// @return one line for each scheduler that could not be asked
std::vector<std::string> refresh(State& state, const std::vector<int>& indices);

/// Has the schedulers end jobs that have ids and are not over, each with one command.
/// @return why not, of those that run or wait on
std::map<int, std::string> cancel_in_clusters(State& state, const std::vector<int>& indices);

/// A single job's submission file is in the out_dir too. What lies there may have its name.
/// @throws UsageError if it is not made by submit
void check_submission_file(const JobRequest& job, const std::string& out_dir);

}  // namespace ddp::submit
