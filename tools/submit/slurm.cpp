// tools/submit/slurm.cpp - Slurm: the batch script, the controller's queue and the accounting.
#include <fmt/ranges.h>

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <system_error>

#include "common/base/parse.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

/// "JOBID EXITCODE", written in the job's folder when the job is over.
constexpr const char* kExitCodeFile = "exit_code";
/// "JOBID NUMBER" there: how often the job has asked to be started again.
constexpr const char* kRequeuesFile = "requeues";
// Before the time limit. Slurm may send the signal up to a minute early.
constexpr int kWarningSeconds = 120;

/// What an array's script does first. A task is one point: it has its folder and its command from
/// the line of its number.
constexpr const char* kTakePoint = R"(
mapfile -t -s "$SLURM_ARRAY_TASK_ID" -n 1 point <points && eval "set -- ${point[0]}" || exit 2
# Without the second number the leader of an array, whose id is the array's, would act for all.
id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
output=$PWD/job-$id.out
mkdir -p -- "$1" && cd -- "$1" && ln -sf -- "$output" . || exit 2
shift)";

/// At the port by which several nodes meet, nobody comes in who does not know this.
constexpr const char* kMakeStoreKey =
    R"([[ -n ${DDP_STORE_KEY:-} ]] || DDP_STORE_KEY=$(od -An -N16 -tx1 /dev/urandom | tr -d '[:space:]')
export DDP_STORE_KEY

)";

/// What follows the directives, with braces doubled for fmt.
constexpr const char* kScript = R"(
umask {umask:04o}
cd -- {folder} || exit 2{take_point}
most=${{DDP_MAX_REQUEUES:-{most}}}
if [[ ! $most =~ ^[0-9]{{1,9}}$ ]]; then
  echo "DDP_MAX_REQUEUES: got \"$most\", expected a number" >&2
  exit 2
fi

{store_key}# A trapped signal ends bash's wait, not the step: then wait again.
step=
waiting=1
trap 'waiting=1; [[ -z $step ]] || kill -USR1 "$step" 2>/dev/null' USR1
trap 'waiting=1; [[ -z $step ]] || kill -TERM "$step" 2>/dev/null' TERM

# One step with all processes. A lost one ends the others.
# Each sees all GPUs of its job on its node, and its local rank picks one: as in slurm/common.sh, not by --gpu-bind=none.
unset SLURM_GPU_BIND SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK SLURM_TRES_BIND
# {transient}: a port was taken. The next step computes another.
for attempt in 1 2 3; do
  srun --kill-on-bad-exit=1 --cpus-per-task={cpus} --export=ALL \
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
# Slurm's own count has its preemptions and lost nodes too. This one has what was asked for here.
read -r of requeues 2>/dev/null <{requeues_file} && [[ $of == "$id" && $requeues =~ ^[0-9]{{1,9}}$ ]] || requeues=0
if ((code == {again} || code == 128 + $(kill -l USR1))) && ((10#$requeues < 10#$most)) &&
  [[ $(scontrol --oneliner show job "$id") == *" JobState=RUNNING "* ]] &&
  printf '%s %s\n' "$id" $((10#$requeues + 1)) >{requeues_file} &&
  scontrol requeue "$id"; then
  exit "$code"
fi
printf '%s %s\n' "$id" "$code" >{code_file}.new && mv {code_file}.new {code_file}
exit "$code"
)";

/// "1-06:00:00"
std::string format_time(std::int64_t seconds) {
  const std::int64_t days = seconds / 86400;
  return fmt::format("{}{:02}:{:02}:{:02}", days > 0 ? fmt::format("{}-", days) : "",
                     seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
}

/// For all commands but sbatch.
void add_cluster(std::vector<std::string>& argv, const std::string& cluster) {
  if (!cluster.empty()) {
    argv.push_back("--clusters=" + cluster);
  }
}

/// This user's jobs that the controller still knows, over or not: id, state, reason, comment.
CommandResult list_queue(const std::string& cluster) {
  std::vector<std::string> argv = {"squeue",  "--me",         "--noheader",
                                   "--array", "--states=all", "--format=%i|%T|%r|%k"};
  add_cluster(argv, cluster);
  return run_command(argv);
}

mode_t current_umask() {
  const mode_t mask = umask(0);
  umask(mask);
  return mask;
}

/// What the job is to find in DDP_MAX_REQUEUES if the site passes no variables on.
/// @throws UsageError
int most_requeues() {
  const char* const text = getenv("DDP_MAX_REQUEUES");
  return text == nullptr || *text == '\0'
             ? kMostRestarts
             : parse_integer<int>("DDP_MAX_REQUEUES", text, 0, 999'999'999);
}

/// A site may allow fewer tasks than Slurm's default, or more.
std::size_t most_in_an_array(const JobRequest& /*job*/) {
  constexpr std::size_t kDefault = 1001;
  static const std::regex kSetting("MaxArraySize *= *(\\d{1,9})");
  for (const std::string& line : split(run_command({"scontrol", "show", "config"}).out, '\n')) {
    std::smatch parts;
    if (std::regex_match(line, parts, kSetting)) {
      return std::max<std::size_t>(1, std::stoul(parts[1]));
    }
  }
  return kDefault;
}

/// "1234_[0-2,5]"
std::vector<std::string> slurm_cancel_ids(const std::string& submission,
                                          const std::vector<std::string>& tasks) {
  if (tasks.empty()) {
    return {submission};
  }
  std::string ranges;
  for (std::size_t i = 0, end = 0; i < tasks.size(); i = end) {
    for (end = i + 1; end < tasks.size() &&
                      to_int(tasks[end]) == *to_int(tasks[i]) + static_cast<int>(end - i);) {
      ++end;
    }
    ranges += (i > 0 ? "," : "") + tasks[i] + (end > i + 1 ? "-" + tasks[end - 1] : "");
  }
  return {fmt::format("{}_[{}]", submission, ranges)};
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
Answer ask_slurm_queue(const Question& question) {
  const CommandResult queue = list_queue(question.cluster);
  Answer answer = {{}, queue.failure};
  for (const std::vector<std::string>& row : queue.rows('|', 4)) {
    answer.findings[row[0]] = slurm_finding(row[1], row[2]);
  }
  return answer;
}

/// The accounting remembers what the controller has forgotten, where there is one.
Findings ask_slurm_accounting(const Question& question) {
  std::vector<std::string> ids;
  for (const auto& [id, count] : question.submissions) {
    ids.push_back(id);
  }
  std::vector<std::string> argv = {"sacct",
                                   "--noheader",
                                   "--parsable2",
                                   "--allocations",
                                   "--array",
                                   "--format=JobID,State,ExitCode",
                                   fmt::format("--jobs={}", fmt::join(ids, ","))};
  add_cluster(argv, question.cluster);
  Findings findings;
  for (const std::vector<std::string>& row : run_command(argv).rows('|', 3)) {
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
  const bool is_its = words.size() == 2 && words[0] == split(job.attempt.id, ';')[0];
  const std::optional<int> code = is_its ? to_int(words[1]) : std::nullopt;
  return code ? std::optional(Finding{*code == 0 ? JobState::kDone : JobState::kFailed, code})
              : std::nullopt;
}

/// @param count 0: of one job alone
std::string script(const JobRequest& job, const std::string& folder, const std::string& token,
                   int count) {
  const Resources& resources = job.resources;
  const std::int64_t cpus_per_task = resources.cpus.value_or(1) / job.processes_per_node;
  const std::string what =
      count > 0 ? fmt::format("Jobs {} and on", job.index) : fmt::format("Job {}", job.index);
  std::string file = fmt::format("#!/bin/bash\n# {}, made by submit.\n", what);
  const Lines line = {file, "#SBATCH --", "="};
  line("job-name", count > 0 ? fmt::format("sweep-{}", job.index) : job.name);
  line("comment", token);
  if (count > 0) {
    line("array",
         fmt::format("0-{}{}", count - 1, job.limit > 0 ? fmt::format("%{}", job.limit) : ""));
  }
  // Relative to the folder where sbatch is run. No two attempts share an id.
  line("output", count > 0 ? "job-%A_%a.out" : "job-%j.out");
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
  // The job's output is made with submit's mask, which keeps it from others; see PrivateFiles.
  return file + fmt::format(kScript, fmt::arg("umask", current_umask()),
                            fmt::arg("folder", shell_line({folder})),
                            fmt::arg("take_point", count > 0 ? kTakePoint : "\nid=$SLURM_JOB_ID"),
                            fmt::arg("store_key", resources.nodes > 1 ? kMakeStoreKey : ""),
                            fmt::arg("most", most_requeues()), fmt::arg("cpus", cpus_per_task),
                            fmt::arg("command", count > 0 ? "\"$@\"" : shell_line(job.command)),
                            fmt::arg("transient", static_cast<int>(ExitCode::kTransient)),
                            fmt::arg("again", kAgain), fmt::arg("code_file", kExitCodeFile),
                            fmt::arg("requeues_file", kRequeuesFile));
}

std::string slurm_file(const JobRequest& job, const std::string& folder, int /*attempt*/,
                       const std::string& token) {
  return script(job, folder, token, 0);
}

std::string slurm_array(const JobRequest& first, const std::string& folder, int /*attempt*/,
                        const std::string& token, int count) {
  return script(first, folder, token, count);
}

std::string slurm_point(const JobRequest& job, const std::string& folder) {
  std::vector<std::string> words = {folder};
  words.insert(words.end(), job.command.begin(), job.command.end());
  return shell_line(words);
}

std::string after_in_slurm(const std::string& submission) {
  return "--dependency=afterany:" + submission;
}

Search find_in_slurm(const Job& job, const std::string& folder, const std::string& array_folder) {
  const CommandResult queue = list_queue("");
  for (const std::vector<std::string>& row : queue.rows('|', 4)) {
    if (row[3] == job.attempt.token) {
      return {parse_job_id(row[0]).submission, ""};
    }
  }
  // It may be over and forgotten: then its output is there, under a name with the id.
  const bool is_alone = job.attempt.count == 1;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(is_alone ? folder : array_folder, error)) {
    static const std::regex kOutput("job-(\\d+)(_\\d+)?\\.out");
    const std::string name = entry.path().filename().string();
    std::smatch parts;
    const auto is_its = [&parts](const std::string& id) {
      return parse_job_id(id).submission == parts[1];
    };
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
      .cancel_ids = slurm_cancel_ids,
      .file_text = slurm_file,
      .array_text = slurm_array,
      .point_line = slurm_point,
      .most_together = most_in_an_array,
      .begin_after = after_in_slurm,
      .id_pattern = "([1-9]\\d*(?:;[A-Za-z0-9][\\w.-]*)?)\n?",  // on a federation "1234;cluster"
      .ask_queue = ask_slurm_queue,
      .ask_history = ask_slurm_accounting,
      .read_record = read_exit_code,
      .lost = "Slurm does not know it any more, and it left no exit code",
      .find = find_in_slurm,
  };
  return kSlurm;
}

}  // namespace ddp::submit
