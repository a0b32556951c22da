// tools/submit/submission_file.cpp - the text that HTCondor or Slurm is given.
#include "tools/submit/submission_file.hpp"

#include <cstdio>
#include <optional>
#include <sstream>

#include "common/base/exit_codes.hpp"
#include "tools/submit/quoting.hpp"

namespace ddp::submit {
namespace {

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

/// Lines "<start><name><between><value>", for values that are there.
struct Lines {
  std::ostringstream& file;
  const char* start;
  const char* between;

  void operator()(const char* name, const std::string& value) const {
    if (!value.empty()) {
      file << start << name << between << value << '\n';
    }
  }
  void operator()(const char* name, std::optional<std::int64_t> value) const {
    (*this)(name, value ? std::to_string(*value) : "");
  }
};

// Before the time limit. Slurm may send the signal up to a minute early.
constexpr int kWarningSeconds = 120;

void write_directives(std::ostringstream& file, const JobRequest& job, const std::string& token) {
  const Resources& resources = job.resources;
  const Lines line = {file, "#SBATCH --", "="};
  line("job-name", job.name);
  line("comment", token);
  // Relative to the job's folder, where sbatch is run.
  line("output", job_files(job, 1).out);
  line("open-mode", "append");
  line("nodes", resources.nodes);
  line("ntasks-per-node", job.processes_per_node);
  line("cpus-per-task", resources.cpus.value_or(1) / job.processes_per_node);
  line("mem", resources.memory_mb ? std::to_string(*resources.memory_mb) + "M" : "");
  line("gpus-per-node", resources.gpus > 0 ? std::to_string(resources.gpus) : "");
  line("time", resources.time_s ? format_time(*resources.time_s) : "");
  line("account", resources.account);
  line("partition", resources.partition);
  line("constraint", resources.constraint);
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
  // What the file asks for is of one slot: of a node, or of each process of several.
  const int slots = job.several ? job.processes_per_node : 1;

  std::ostringstream file;
  const Lines line = {file, "", " = "};
  file << "# Job " << job.index << ", made by submit.\n";
  if (job.several) {
    file << "# " << resources.nodes << " nodes with " << job.processes_per_node
         << " processes each. A process sees its slot only, so each has a slot of its own.\n";
    line("universe", "parallel");
    line("machine_count", resources.nodes * job.processes_per_node);
  } else {
    line("universe", "vanilla");
  }
  line("executable", condor_path("script_path", job.command.front()));
  line("transfer_executable", transfers ? "True" : "False");
  line("arguments", condor_arguments({job.command.begin() + 1, job.command.end()}));
  // A job that is started again has the same cluster id, and in its folder the address of the last
  // start: its processes find each other by the number of the start too.
  line("environment",
       std::string("\"DDP_JOB_ID=$(ClusterId)") + (job.several ? ".$$([NumJobStarts])\"" : "\""));
  line("initialdir", condor_path("out_dir", out_dir + "/" + job.folder));
  line("output", files.out + per_node);
  line("error", files.err + per_node);
  line("log", files.log);
  if (transfers) {
    std::string list;
    for (const std::string& path : resources.transfer_files) {
      list += (list.empty() ? "" : ",") + condor_path("transfer_files", path);
    }
    line("should_transfer_files", "YES");
    line("when_to_transfer_output", "ON_EXIT_OR_EVICT");
    line("transfer_input_files", list);
  } else {
    file
        << "# Program, data and folder are those of this machine: only nodes that see them suit.\n";
    line("should_transfer_files", "NO");
  }
  // At least one per process was checked; a remainder would ask for more than the node was to give.
  line("request_cpus", resources.cpus.value_or(1) / slots);
  if (resources.memory_mb) {
    line("request_memory", (*resources.memory_mb + slots - 1) / slots);
  }
  if (resources.gpus > 0) {
    line("request_gpus", resources.gpus / slots);
    line("gpus_minimum_memory", resources.gpu_memory_mb);
  }
  if (job.several) {
    file << "# Without this the end of the first process ends the others where they are.\n";
    line("+ParallelShutdownPolicy", "\"WAIT_FOR_ALL\"");
    file << "# Stopped with a good snapshot: back into the queue.\n";
    line("on_exit_remove", "ExitCode =!= " + std::to_string(kAgain));
  } else {
    file << "# Stopped with a good snapshot: started again.\n";
    line("checkpoint_exit_code", kAgain);
  }
  line("allowed_execute_duration", resources.time_s);
  line("accounting_group", resources.account);
  line("+Bid", resources.bid);
  line("batch_name", job.name);
  line("+SubmitToken", "\"" + token + "\"");
  line("notification", "Never");
  file << "queue\n";
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
