// tools/submit/submission_file.hpp - the text that HTCondor or Slurm is given.
#pragma once

#include <string>
#include <vector>

#include "tools/submit/job.hpp"

namespace ddp::submit {

/// Files of a job's attempt, below the job's folder.
struct JobFiles {
  std::string out;  ///< standard output (of Slurm jobs both streams, named by Slurm with the id)
  std::string err;
  std::string log;  ///< HTCondor's own log of the job, also read here
  std::string exit_code;  ///< Slurm: "JOBID EXITCODE", written when the job is over
};
JobFiles job_files(const JobRequest& job, int attempt);

/// An HTCondor submit description with one queue statement. One node: vanilla universe, one job
/// with all GPUs. Several: parallel universe, one process per slot and slot per GPU, because that
/// is what each of them sees. Exit code 85 starts the job again in both.
/// @param out_dir absolute
/// @throws UsageError for a path that HTCondor cannot be given
std::string condor_file(const JobRequest& job, const std::string& out_dir, int attempt,
                        const std::string& token);

/// A script for sbatch. It starts the program with srun, hands the warning before the time limit on
/// to it, and requeues the job if it exits with 85.
std::string slurm_file(const JobRequest& job, const std::string& out_dir, int attempt,
                       const std::string& token);

/// Of the job's scheduler, which is not local.
std::string submission_text(const JobRequest& job, const std::string& out_dir, int attempt,
                            const std::string& token);

/// "submission_file.sub" or "submission_file.sbatch"
std::string submission_name(const JobRequest& job);
/// In the job's own folder: no other submission writes there.
std::string submission_path(const JobRequest& job, const std::string& out_dir);

/// What hands it over. The scheduler's answer on standard output is the job's id, nothing else.
std::vector<std::string> submission_command(const JobRequest& job, const std::string& out_dir);

}  // namespace ddp::submit
