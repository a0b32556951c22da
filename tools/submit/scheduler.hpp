// tools/submit/scheduler.hpp - what HTCondor, Slurm, or this machine says about jobs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

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

/// @param jobs not over, with their ids
Answer ask_condor(const std::vector<const Job*>& jobs, const std::string& out_dir);
Answer ask_slurm(const std::vector<const Job*>& jobs, const std::string& out_dir);

Search find_in_condor(const Job& job, const std::string& out_dir);
Search find_in_slurm(const Job& job, const std::string& out_dir);

/// The id in what `condor_submit -terse` or `sbatch --parsable` printed; none unless that is all it
/// printed.
std::optional<std::string> parse_condor_id(const std::string& out);
std::optional<std::string> parse_slurm_id(const std::string& out);

/// Without the cluster, "1234;cluster", that sbatch prints on a federation.
std::string slurm_number(const std::string& id);

/// What HTCondor's own log of a job says, without asking anybody. The id is that of the cluster.
struct CondorLog {
  std::string id;
  Finding finding;
};
std::optional<CondorLog> parse_condor_log(std::string_view text);

}  // namespace ddp::submit
