// tools/submit/slurm.cpp - Slurm: the batch script, the controller's queue and the accounting.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <system_error>

#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

/// "JOBID EXITCODE", written in the job's folder when the job is over.
constexpr const char* kExitCodeFile = "exit_code";
// Before the time limit. Slurm may send the signal up to a minute early.
constexpr int kWarningSeconds = 120;

/// What follows the directives, with braces doubled for fmt.
constexpr const char* kScript = R"(
cd -- {folder} || exit 2
most=${{DDP_MAX_REQUEUES:-{most}}}
if [[ ! $most =~ ^[0-9]{{1,9}}$ ]]; then
  echo "DDP_MAX_REQUEUES: got \"$most\", expected a number" >&2
  exit 2
fi

# A trapped signal ends bash's wait, not the step: then wait again.
step=
waiting=1
trap 'waiting=1; [[ -z $step ]] || kill -USR1 "$step" 2>/dev/null' USR1
trap 'waiting=1; [[ -z $step ]] || kill -TERM "$step" 2>/dev/null' TERM

# One step with all processes. A lost one ends the others.
# {transient}: a port was taken. The next step computes another.
for attempt in 1 2 3; do
  srun --kill-on-bad-exit=1 --cpus-per-task={cpus} \
    {command} &
  step=$!
  waiting=1
  while ((waiting)); do
    waiting=0
    wait "$step"
    code=$?
  done
  ((code == {transient} && attempt < 3)) || break
done

# {again}: stopped with a good snapshot, run me again; as good as a signal before the program had begun.
# The job keeps its id and its place. One that was cancelled stays so.
if ((code == {again} || code == 128 + $(kill -l USR1))) && ((${{SLURM_RESTART_COUNT:-0}} < 10#$most)) &&
  [[ $(scontrol --oneliner show job "$SLURM_JOB_ID") == *" JobState=RUNNING "* ]] &&
  scontrol requeue "$SLURM_JOB_ID"; then
  exit "$code"
fi
printf '%s %s\n' "$SLURM_JOB_ID" "$code" >{code_file}.new && mv {code_file}.new {code_file}
exit "$code"
)";

/// "1-06:00:00"
std::string format_time(std::int64_t seconds) {
  const std::int64_t days = seconds / 86400;
  return fmt::format("{}{:02}:{:02}:{:02}", days > 0 ? fmt::format("{}-", days) : "",
                     seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
}

/// This user's jobs that the controller still knows, over or not: id, state, reason, comment.
CommandResult list_queue() {
  return run_command({"squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%k"});
}

/// Slurm's word for a job's state. @param reason of the state, as squeue prints it
Finding slurm_finding(const std::string& state, const std::string& reason) {
  static const std::map<std::string, JobState> kStates = {
      {"PENDING", JobState::kPending},    {"CONFIGURING", JobState::kPending},
      {"REQUEUED", JobState::kPending},   {"REQUEUE_FED", JobState::kPending},
      {"REQUEUE_HOLD", JobState::kHeld},  {"SPECIAL_EXIT", JobState::kHeld},
      {"RESV_DEL_HOLD", JobState::kHeld}, {"RUNNING", JobState::kRunning},
      {"COMPLETING", JobState::kRunning}, {"SUSPENDED", JobState::kRunning},
      {"STOPPED", JobState::kRunning},    {"SIGNALING", JobState::kRunning},
      {"COMPLETED", JobState::kDone},     {"CANCELLED", JobState::kCancelled},
  };
  const auto found = kStates.find(state);
  if (found == kStates.end()) {
    return {JobState::kFailed, std::nullopt, "Slurm says " + state};
  }
  const JobState known = found->second;
  const bool waits = known == JobState::kPending || known == JobState::kHeld;
  return {waits && reason.starts_with("JobHeld") ? JobState::kHeld : known,
          known == JobState::kDone ? std::optional<int>(0) : std::nullopt,
          waits && reason != "None" ? reason : ""};
}

/// squeue does not tell the exit code of a job that failed.
Answer ask_slurm_queue(const std::vector<std::string>& /*ids*/) {
  const CommandResult queue = list_queue();
  Answer answer = {{}, queue.failure};
  for (const std::vector<std::string>& row : queue.rows('|', 4)) {
    answer.findings[row[0]] = slurm_finding(row[1], row[2]);
  }
  return answer;
}

/// The accounting remembers what the controller has forgotten, where there is one.
Findings ask_slurm_accounting(const std::vector<std::string>& ids) {
  const CommandResult sacct = run_command({"sacct", "--noheader", "--parsable2", "--allocations",
                                           "--format=JobIDRaw,State,ExitCode",
                                           fmt::format("--jobs={}", fmt::join(ids, ","))});
  Findings findings;
  for (const std::vector<std::string>& row : sacct.rows('|', 3)) {
    // "CANCELLED by 1000", "1:0" is code and signal.
    Finding finding = slurm_finding(split(row[1], ' ', 2)[0], "");
    if (finding.state == JobState::kFailed || finding.state == JobState::kDone) {
      finding.exit_code = to_int(split(row[2], ':', 2)[0]);
    }
    findings[row[0]] = finding;
  }
  return findings;
}

/// What the job's own script has written down.
std::optional<Finding> read_exit_code(const Job& job, const std::string& folder) {
  const std::optional<std::string> text = read_text(folder + "/" + kExitCodeFile);
  const std::vector<std::string> words = split(split(text.value_or(""), '\n')[0], ' ', 2);
  const bool is_its = words.size() == 2 && words[0] == id_alone(job.attempt.id);
  const std::optional<int> code = is_its ? to_int(words[1]) : std::nullopt;
  return code ? std::optional(Finding{*code == 0 ? JobState::kDone : JobState::kFailed, code})
              : std::nullopt;
}

std::string slurm_file(const JobRequest& job, const std::string& folder, int /*attempt*/,
                       const std::string& token) {
  const Resources& resources = job.resources;
  const std::int64_t cpus_per_task = resources.cpus.value_or(1) / job.processes_per_node;
  std::string file = fmt::format("#!/bin/bash\n# Job {}, made by submit.\n", job.index);
  const Lines line = {file, "#SBATCH --", "="};
  line("job-name", job.name);
  line("comment", token);
  // Relative to the job's folder, where sbatch is run. No two attempts share an id.
  line("output", "job-%j.out");
  line("open-mode", "append");
  line("nodes", resources.nodes);
  line("ntasks-per-node", job.processes_per_node);
  line("cpus-per-task", cpus_per_task);
  line("mem", resources.memory_mb ? fmt::format("{}M", *resources.memory_mb) : "");
  line("gpus-per-node", resources.gpus > 0 ? std::optional(resources.gpus) : std::nullopt);
  line("time", resources.time_s ? format_time(*resources.time_s) : "");
  line("account", resources.account);
  line("partition", resources.partition);
  line("constraint", resources.constraint);
  file += "#SBATCH --requeue\n";
  line("signal", fmt::format("B:USR1@{}", kWarningSeconds));
  return file + fmt::format(kScript, fmt::arg("folder", shell_line({folder})),
                            fmt::arg("most", kMostRestarts), fmt::arg("cpus", cpus_per_task),
                            fmt::arg("command", shell_line(job.command)),
                            fmt::arg("transient", static_cast<int>(ExitCode::kTransient)),
                            fmt::arg("again", kAgain), fmt::arg("code_file", kExitCodeFile));
}

Search find_in_slurm(const Job& job, const std::string& folder) {
  const CommandResult queue = list_queue();
  for (const std::vector<std::string>& row : queue.rows('|', 4)) {
    if (row[3] == job.attempt.token) {
      return {row[0], ""};
    }
  }
  // It may be over and forgotten: then its output is there, under a name with the id.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    static const std::regex kOutput("job-(\\d+)\\.out");
    const std::string name = entry.path().filename().string();
    std::smatch parts;
    const auto is_its = [&parts](const std::string& id) { return id_alone(id) == parts[1]; };
    const std::vector<std::string>& earlier = job.attempt.earlier_ids;
    if (std::regex_match(name, parts, kOutput) &&
        std::none_of(earlier.begin(), earlier.end(), is_its)) {
      return {parts[1], ""};
    }
  }
  return {"", queue.failure};
}

}  // namespace

const ClusterScheduler& slurm() {
  static const ClusterScheduler kSlurm = {
      .file_name = "submission_file.sbatch",
      .submit_command = {"sbatch", "--parsable"},
      .cancel_command = "scancel",
      .file_text = slurm_file,
      .id_pattern = "([1-9]\\d*(;[\\w.-]+)?)\n?",  // on a federation "1234;cluster"
      .ask_queue = ask_slurm_queue,
      .ask_history = ask_slurm_accounting,
      .read_record = read_exit_code,
      .lost = "Slurm does not know it any more, and it left no exit code",
      .find = find_in_slurm,
  };
  return kSlurm;
}

}  // namespace ddp::submit
