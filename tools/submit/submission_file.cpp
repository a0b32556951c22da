// tools/submit/submission_file.cpp - the text that HTCondor or Slurm is given.
#include "tools/submit/submission_file.hpp"

#include <cstdio>
#include <sstream>

#include "common/base/exit_codes.hpp"
#include "tools/submit/quoting.hpp"

namespace ddp::submit {
namespace {

constexpr int kAgain = static_cast<int>(ExitCode::kRunAgain);

/// "job.out", of the second attempt "job.2.out".
std::string numbered(int attempt, const std::string& extension) {
  return "job" + (attempt > 1 ? "." + std::to_string(attempt) : "") + extension;
}

/// "1-06:00:00"
std::string format_time(std::int64_t seconds) {
  const std::int64_t days = seconds / 86400;
  char time[16];
  std::snprintf(time, sizeof(time), "%02d:%02d:%02d", static_cast<int>(seconds / 3600 % 24),
                static_cast<int>(seconds / 60 % 60), static_cast<int>(seconds % 60));
  return (days > 0 ? std::to_string(days) + "-" : "") + time;
}

void write_requests(std::ostringstream& file, const JobRequest& job, int parts) {
  const Resources& resources = job.resources;
  // At least one per process was checked; a remainder would ask for more than the node was to give.
  file << "request_cpus = " << resources.cpus.value_or(1) / parts << '\n';
  if (resources.memory_mb) {
    file << "request_memory = " << (*resources.memory_mb + parts - 1) / parts << '\n';
  }
  if (resources.gpus > 0) {
    file << "request_gpus = " << resources.gpus / parts << '\n';
    if (resources.gpu_memory_mb) {
      file << "gpus_minimum_memory = " << *resources.gpu_memory_mb << '\n';
    }
  }
}

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

JobFiles job_files(const JobRequest& job, int attempt) {
  if (job.scheduler == Scheduler::kSlurm) {
    // Slurm puts the id for %j, which no two attempts share.
    return {"job-%j.out", "job-%j.out", "", "exit_code"};
  }
  return {numbered(attempt, ".out"), numbered(attempt, ".err"), numbered(attempt, ".log"), ""};
}

std::string condor_file(const JobRequest& job, const std::string& out_dir, int attempt,
                        const std::string& token) {
  const Resources& resources = job.resources;
  const JobFiles files = job_files(job, attempt);
  const bool transfers = !resources.transfer_files.empty();
  const std::string per_node = job.several ? ".$(Node)" : "";

  std::ostringstream file;
  file << "# Job " << job.index << ", made by submit.\n";
  if (job.several) {
    file << "# " << resources.nodes << " nodes with " << job.processes_per_node
         << " processes each. A process sees its slot only, so each has a slot of its own.\n"
         << "universe = parallel\n"
         << "machine_count = " << resources.nodes * job.processes_per_node << '\n';
  } else {
    file << "universe = vanilla\n";
  }
  file << "executable = " << condor_path("script_path", job.command.front()) << '\n'
       << "transfer_executable = " << (transfers ? "True" : "False") << '\n'
       << "arguments = " << condor_arguments({job.command.begin() + 1, job.command.end()}) << '\n'
       << "environment = "
       << "\"DDP_JOB_ID=$(ClusterId)"
       // A job that is started again has the same cluster id, and in its folder the address of the
       // last start: its processes find each other by the number of the start too.
       << (job.several ? ".$$([NumJobStarts])\"\n" : "\"\n")
       << "initialdir = " << condor_path("out_dir", out_dir + "/" + job.folder) << '\n'
       << "output = " << files.out << per_node << '\n'
       << "error = " << files.err << per_node << '\n'
       << "log = " << files.log << '\n';
  if (transfers) {
    std::string list;
    for (const std::string& path : resources.transfer_files) {
      list += (list.empty() ? "" : ",") + condor_path("transfer_files", path);
    }
    file << "should_transfer_files = YES\n"
         << "when_to_transfer_output = ON_EXIT_OR_EVICT\n"
         << "transfer_input_files = " << list << '\n';
  } else {
    file << "# Program, data and folder are those of this machine: only nodes that see them suit.\n"
         << "should_transfer_files = NO\n";
  }
  write_requests(file, job, job.several ? job.processes_per_node : 1);
  if (job.several) {
    file << "# Without this the end of the first process ends the others where they are.\n"
         << "+ParallelShutdownPolicy = \"WAIT_FOR_ALL\"\n"
         << "# Stopped with a good snapshot: back into the queue.\n"
         << "on_exit_remove = ExitCode =!= " << kAgain << '\n';
  } else {
    file << "# Stopped with a good snapshot: started again.\n"
         << "checkpoint_exit_code = " << kAgain << '\n';
  }
  if (resources.time_s) {
    file << "allowed_execute_duration = " << *resources.time_s << '\n';
  }
  if (!resources.account.empty()) {
    file << "accounting_group = " << resources.account << '\n';
  }
  if (resources.bid) {
    file << "+Bid = " << *resources.bid << '\n';
  }
  file << "batch_name = " << job.name << '\n'
       << "+SubmitToken = " << '"' << token << "\"\n"
       << "notification = Never\n"
       << "queue\n";
  return file.str();
}

std::string slurm_file(const JobRequest& job, const std::string& out_dir, int attempt,
                       const std::string& token) {
  const int cpus_per_task = job.resources.cpus.value_or(1) / job.processes_per_node;
  std::ostringstream file;
  file << "#!/bin/bash\n# Job " << job.index << ", made by submit.\n";
  write_directives(file, job, token);
  const JobFiles files = job_files(job, attempt);
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

# )" << kAgain
      << R"(: stopped with a good snapshot, run me again; as good as a signal before the program had begun.
# The job keeps its id and its place. One that was cancelled stays so.
if ((code == )"
      << kAgain
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

std::string submission_text(const JobRequest& job, const std::string& out_dir, int attempt,
                            const std::string& token) {
  return job.scheduler == Scheduler::kSlurm ? slurm_file(job, out_dir, attempt, token)
                                            : condor_file(job, out_dir, attempt, token);
}

std::string submission_name(const JobRequest& job) {
  return job.scheduler == Scheduler::kSlurm ? "submission_file.sbatch" : "submission_file.sub";
}

std::string submission_path(const JobRequest& job, const std::string& out_dir) {
  return out_dir + "/" + job.folder + "/" + submission_name(job);
}

std::vector<std::string> submission_command(const JobRequest& job, const std::string& out_dir) {
  const std::string path = submission_path(job, out_dir);
  if (job.scheduler == Scheduler::kSlurm) {
    return {"sbatch", "--parsable", path};
  }
  return {"condor_submit", "-terse", path};
}

}  // namespace ddp::submit
