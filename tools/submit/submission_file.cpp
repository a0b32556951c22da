#include "tools/submit/submission_file.hpp"

#include <filesystem>

#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

/// "job.out", of the second attempt "job.2.out".
std::string numbered(const std::string& stem, int attempt, const std::string& extension) {
  return stem + (attempt > 1 ? "." + std::to_string(attempt) : "") + extension;
}

}  // namespace

JobFiles job_files(const JobRequest& job, int attempt) {
  if (job.scheduler == Scheduler::kSlurm) {
    // Slurm puts the id for %j, which no two attempts share.
    return {"job-%j.out", "job-%j.out", "", "exit_code"};
  }
  return {numbered("job", attempt, ".out"), numbered("job", attempt, ".err"),
          numbered("job", attempt, ".log"), ""};
}

std::string submission_path(const JobRequest& job, const std::string& out_dir) {
  const std::string name =
      job.scheduler == Scheduler::kSlurm ? "submission_file.sbatch" : "submission_file.sub";
  return out_dir + "/" + (job.single ? "" : job.folder + "/") + name;
}

std::vector<std::string> submission_command(const JobRequest& job, const std::string& out_dir) {
  const std::string path = submission_path(job, out_dir);
  if (job.scheduler == Scheduler::kSlurm) {
    return {"sbatch", "--parsable", path};
  }
  return {"condor_submit", "-terse", path};
}

}  // namespace ddp::submit
