// tools/submit/scheduler.hpp - what is written for HTCondor and Slurm, and what they say of jobs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// By id, as id_alone() has it: the jobs of which something is known.
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
  const char* cancel_command;  ///< its argument is an id

  /// The text of the submission file.
  /// @throws UsageError for what the scheduler cannot be given
  std::string (*file_text)(const JobRequest& job, const std::string& folder, int attempt,
                           const std::string& token);
  const char* id_pattern;  ///< of what submit_command prints, with the id as its first group

  /// About the jobs that the scheduler has.
  Answer (*ask_queue)(const std::vector<std::string>& ids);
  /// About those that it had, where it remembers them.
  Findings (*ask_history)(const std::vector<std::string>& ids);
  /// What is in the job's folder needs nobody to answer.
  std::optional<Finding> (*read_record)(const Job& job, const std::string& folder);
  const char* lost;  ///< the reason, if none of these knows a job
  /// By its token, or by what is in its folder.
  Search (*find)(const Job& job, const std::string& folder);
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

/// The id in what submit_command printed; none unless that is all it printed.
std::optional<std::string> parse_id(const ClusterScheduler& scheduler, const std::string& out);

/// Without the cluster, "1234;cluster", that sbatch prints on a federation.
std::string id_alone(const std::string& id);

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

/// Runs a scheduler's command and waits for its end.
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
