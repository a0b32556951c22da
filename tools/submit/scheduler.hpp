// tools/submit/scheduler.hpp - talks to HTCondor, Slurm, or to this machine.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// What is known of a job by now.
struct Finding {
  JobState state = JobState::kLost;
  std::optional<int> exit_code;
  std::string reason;
};

/// The answer about several jobs: by index, those of which something is known.
struct Answer {
  std::map<int, Finding> findings;
  std::string unreachable;  ///< one line: why the scheduler could not be asked; empty: it answered
};

/// Whether a job whose submission was cut off is there.
struct Search {
  std::string id;  ///< empty: not found
  std::string unreachable;  ///< as above; then "not found" says nothing
};

Answer ask_condor(const std::vector<const Job*>& jobs, const std::string& out_dir);
Answer ask_slurm(const std::vector<const Job*>& jobs, const std::string& out_dir);
Answer ask_local(const std::vector<const Job*>& jobs, const std::string& out_dir);

Search find_in_condor(const Job& job, const std::string& out_dir);
Search find_in_slurm(const Job& job, const std::string& out_dir);

/// Sends SIGTERM to the submit that runs a local job, which hands it on to the job.
/// @return one line: why that cannot be; empty if it was sent, or if the job runs no more
std::string stop_local(const Job& job, const std::string& out_dir);

/// The id in what `condor_submit -terse` or `sbatch --parsable` printed; none unless that is all it
/// printed.
std::optional<std::string> parse_condor_id(std::string_view out);
std::optional<std::string> parse_slurm_id(std::string_view out);

/// What HTCondor's own log of a job says, without asking anybody. The id is that of the cluster.
struct CondorLog {
  std::string id;
  Finding finding;
};
std::optional<CondorLog> parse_condor_log(std::string_view text);

/// Slurm's word for a job's state. @param reason of the state, as squeue prints it
Finding slurm_finding(std::string_view state, const std::string& reason);

/// Held while a local job runs, so that others can tell: out_dir/jobs/.../running.lock
std::string running_lock_path(const JobRequest& job, const std::string& out_dir);

/// The whole file, or nothing if it cannot be read.
std::optional<std::string> read_text(const std::string& path);
std::vector<std::string> split(std::string_view text, char separator, std::size_t most_parts);

}  // namespace ddp::submit
