#include <sstream>

#include "common/base/exit_codes.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/submission_file.hpp"

namespace ddp::submit {
namespace {

// Before the time limit. Slurm may send the signal up to a minute early.
constexpr int kWarningSeconds = 120;
// Unless DDP_MAX_REQUEUES says otherwise. Many more than the 3 of slurm/*.sh, where somebody
// watches: a job of weeks under a time limit of hours is to end without anybody's help.
constexpr int kMostRestarts = 1000;

void write_directives(std::ostringstream& file, const JobRequest& job, const std::string& token) {
  const Resources& resources = job.resources;
  const int cpus_per_task = resources.cpus.value_or(1) / job.processes_per_node;
  const auto line = [&file](const std::string& name, const std::string& value) {
    file << "#SBATCH --" << name << '=' << value << '\n';
  };
  line("job-name", job.name);
  line("comment", token);
  // Relative to the job's folder, where sbatch is run.
  line("output", job_files(job, 1).out);
  line("open-mode", "append");
  line("nodes", std::to_string(resources.nodes));
  line("ntasks-per-node", std::to_string(job.processes_per_node));
  line("cpus-per-task", std::to_string(cpus_per_task));
  if (resources.memory_mb) {
    line("mem", std::to_string(*resources.memory_mb) + "M");
  }
  if (resources.gpus > 0) {
    line("gpus-per-node", std::to_string(resources.gpus));
  }
  if (resources.time_s) {
    line("time", format_time(*resources.time_s));
  }
  if (!resources.account.empty()) {
    line("account", resources.account);
  }
  if (!resources.partition.empty()) {
    line("partition", resources.partition);
  }
  if (!resources.constraint.empty()) {
    line("constraint", resources.constraint);
  }
  file << "#SBATCH --requeue\n";
  line("signal", "B:USR1@" + std::to_string(kWarningSeconds));
}

}  // namespace

std::string slurm_file(const JobRequest& job, const std::string& out_dir, int attempt,
                       const std::string& token) {
  const int cpus_per_task = job.resources.cpus.value_or(1) / job.processes_per_node;
  std::ostringstream file;
  file << "#!/bin/bash\n# Job " << job.index << ", made by submit.\n";
  write_directives(file, job, token);
  const JobFiles files = job_files(job, attempt);
  const int again = static_cast<int>(ExitCode::kRunAgain);
  file
      << "\ncd -- " << shell_quote(out_dir + "/" + job.folder) << " || exit 2\n"
      << "most=${DDP_MAX_REQUEUES:-" << kMostRestarts << "}\n"
      << R"(if [[ ! $most =~ ^[0-9]{1,9}$ ]]; then
  echo "DDP_MAX_REQUEUES: got \"$most\", expected a number" >&2
  exit 2
fi

# A trapped signal ends bash's wait, not the step: then wait again.
step=
waiting=1
trap 'waiting=1; [[ -z $step ]] || kill -USR1 "$step" 2>/dev/null' USR1
trap 'waiting=1; [[ -z $step ]] || kill -TERM "$step" 2>/dev/null' TERM

# One step with all processes. A lost one ends the others.
# )" << static_cast<int>(ExitCode::kTransient)
      << R"(: a port was taken. The next step computes another.
for attempt in 1 2 3; do
  srun --kill-on-bad-exit=1 --cpus-per-task=)"
      << cpus_per_task << " \\\n    " << shell_line(job.command) << R"( &
  step=$!
  waiting=1
  while ((waiting)); do
    waiting=0
    wait "$step"
    code=$?
  done
  ((code == )"
      << static_cast<int>(ExitCode::kTransient) << R"( && attempt < 3)) || break
done

# )" << again
      << R"(: stopped with a good snapshot, run me again; as good as a signal before the program had begun.
# The job keeps its id and its place. One that was cancelled stays so.
if ((code == )"
      << again
      << R"( || code == 128 + $(kill -l USR1))) && ((${SLURM_RESTART_COUNT:-0} < 10#$most)) &&
  [[ $(scontrol --oneliner show job "$SLURM_JOB_ID") == *" JobState=RUNNING "* ]] &&
  scontrol requeue "$SLURM_JOB_ID"; then
  exit "$code"
fi
)"
      << "printf '%s %s\\n' \"$SLURM_JOB_ID\" \"$code\" >" << files.exit_code << ".new && mv "
      << files.exit_code << ".new " << files.exit_code << "\nexit \"$code\"\n";
  return file.str();
}

}  // namespace ddp::submit
