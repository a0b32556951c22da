// tools/submit/scheduler.hpp - what is written for HTCondor and Slurm, and what they say of jobs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// What names a job to its scheduler, in parts: "1234", "1234_5;cluster" of Slurm, "1234.5" of
/// HTCondor.
struct JobId {
  std::string submission;
  std::string task = {};  ///< empty: it is alone
  std::string cluster = {};  ///< of a federation
};
JobId parse_job_id(const std::string& id);

/// @param submission its id
std::string job_id(Scheduler scheduler, const std::string& submission, int position, int count);

/// What may be handed to a scheduler's command as the id of a submission.
bool is_submission_id(Scheduler scheduler, const std::string& id);

/// What is asked about: submissions of one cluster of a federation, and how many jobs each has.
struct Question {
  std::string cluster;
  std::map<std::string, int> submissions;
  bool is_limited = false;  ///< some of the jobs may not be in the queue yet
};

/// By id, without the cluster: the jobs of which something is known.
using Findings = std::map<std::string, Finding>;

struct Answer {
  Findings findings;
  std::string unreachable;  ///< one line: why the scheduler could not be asked; empty: it answered
};

/// Whether a job whose submission was cut off is there.
struct Search {
  std::string id;  ///< empty: not found
  std::string unreachable;  ///< as above; then "not found" says nothing
};

/// How jobs are handed to the scheduler of a cluster, and what it can be asked. A job's folder is
/// given as an absolute path.
struct ClusterScheduler {
  const char* file_name;  ///< of a submission file
  /// What hands that file over, which is its last argument. All that it prints is the job's id.
  std::vector<std::string> submit_command;
  const char* cancel_command;  ///< its arguments are ids
  /// Ids for it. @param tasks of that submission; empty: all
  std::vector<std::string> (*cancel_ids)(const std::string& submission,
                                         const std::vector<std::string>& tasks);

  /// The text of the submission file.
  /// @throws UsageError for what the scheduler cannot be given
  std::string (*file_text)(const JobRequest& job, const std::string& folder, int attempt,
                           const std::string& token);
  /// The same for several jobs that differ by what point_line() says. @param folder of the array
  std::string (*array_text)(const JobRequest& first, const std::string& folder, int attempt,
                            const std::string& token, int count);
  /// What a job is of an array: a line of the file kPointsFile beside the submission file.
  /// @throws UsageError as above
  std::string (*point_line)(const JobRequest& job, const std::string& folder);
  /// How many jobs like this one can be submitted together.
  std::size_t (*most_together)(const JobRequest& job);
  /// Has a submission begin only when that one is over, for submit_command.
  std::string (*begin_after)(const std::string& submission);
  const char* id_pattern;  ///< of what submit_command prints: the id, the last job's number

  /// About the jobs that the scheduler has.
  Answer (*ask_queue)(const Question& question);
  /// About those that it had, where it remembers them.
  Findings (*ask_history)(const Question& question);
  /// What is in the job's folder needs nobody to answer.
  std::optional<Finding> (*read_record)(const Job& job, const std::string& folder);
  const char* lost;  ///< the reason, if none of these knows a job
  /// By its token, or by what is in its folder.
  Search (*find)(const Job& job, const std::string& folder, const std::string& array_folder);
};

/// An HTCondor submit description with one queue statement. One node: vanilla universe, one job
/// with all GPUs. Several: parallel universe, one process per slot and slot per GPU, because that
/// is what each of them sees. Exit code 85 starts the job again in both.
const ClusterScheduler& condor();

/// A script for sbatch. It starts the program with srun, hands the warning before the time limit on
/// to it, and requeues the job if it exits with 85.
const ClusterScheduler& slurm();

/// Of a job that is not local.
inline const ClusterScheduler& cluster_scheduler(Scheduler scheduler) {
  return scheduler == Scheduler::kSlurm ? slurm() : condor();
}

inline constexpr const char* kPointsFile = "points";

/// The id in what submit_command printed; none unless that is all it printed.
std::optional<std::string> parse_id(const ClusterScheduler& scheduler, const std::string& out,
                                    int count = 1);

/// What HTCondor's own log of a job says, without asking anybody. The id is that of the cluster.
struct CondorLog {
  std::string id;
  Finding finding;
};
std::optional<CondorLog> parse_condor_log(std::string_view text);

struct CommandResult {
  bool started = false;
  std::string out;
  std::string failure;  ///< one line: why it has no good answer; empty if it exited with 0

  bool ok() const { return failure.empty(); }
  /// Of its lines, if it is ok, those that have so many parts; the last one keeps its separators.
  std::vector<std::vector<std::string>> rows(char separator, std::size_t parts) const;
};

/// Runs a scheduler's command and waits for its end. It does not learn what a job of Slurm that
/// this process may be in, or the user's shell, says in SLURM_*, SBATCH_* and the like: those are
/// options to its commands. Where the cluster is it does learn.
/// @param cwd empty: this process's
/// @param inherited_fd stays open in it; -1: none
CommandResult run_command(const std::vector<std::string>& argv, const std::string& cwd = "",
                          double timeout_s = 60, int inherited_fd = -1);

/// Lines "<start><name><between><value>" of a submission file, for values that are there.
struct Lines {
  std::string& text;
  const char* start;
  const char* between;

  void operator()(const char* name, const std::string& value) const;
  void operator()(const char* name, std::optional<std::int64_t> value) const;
};

}  // namespace ddp::submit
