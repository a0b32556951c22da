// tools/submit/condor.cpp - HTCondor: the submit description, its queue, history and job logs.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

Finding ended(std::optional<int> exit_code, std::optional<int> signal) {
  if (exit_code) {
    return {*exit_code == 0 ? JobState::kDone : JobState::kFailed, exit_code};
  }
  return {JobState::kFailed, std::nullopt,
          signal ? fmt::format("ended by signal {}", *signal) : "ended in an unknown way"};
}

/// JobStatus of a job in the queue. 4, completed, is about to be in the history.
std::optional<Finding> queued(const std::string& status, const std::string& hold_reason) {
  static const std::map<std::string, JobState> kStates = {
      {"1", JobState::kPending}, {"2", JobState::kRunning}, {"3", JobState::kCancelled},
      {"5", JobState::kHeld},    {"6", JobState::kRunning},  // sends its output
      {"7", JobState::kRunning},  // suspended
  };
  const auto known = kStates.find(status);
  if (known == kStates.end()) {
    return std::nullopt;
  }
  const bool has_reason = known->second == JobState::kHeld && hold_reason != "undefined";
  return Finding{known->second, std::nullopt, has_reason ? hold_reason : ""};
}

/// "(1) Normal termination (return value 3)" or "(0) Abnormal termination (signal 9)"
Finding parse_termination(std::string_view event) {
  const auto number_after = [event](std::string_view words) -> std::optional<int> {
    const std::size_t start = event.find(words);
    return start == std::string_view::npos
               ? std::nullopt
               : to_int(split(event.substr(start + words.size()), ')', 2)[0]);
  };
  return ended(number_after("(return value "), number_after("(signal "));
}

/// The words behind the start of an event's second line.
std::string second_line(std::string_view event) {
  const std::vector<std::string> lines = split(event, '\n', 3);
  const std::size_t start =
      lines.size() > 1 ? lines[1].find_first_not_of(" \t") : std::string::npos;
  return start == std::string::npos ? "" : lines[1].substr(start);
}

std::optional<CondorLog> read_log(const Job& job, const std::string& folder) {
  const std::optional<std::string> text =
      read_text(folder + "/" + attempt_file(job.attempt.number, ".log"));
  return text ? parse_condor_log(*text) : std::nullopt;
}

/// @param array_name empty: of one job alone
std::string description(const JobRequest& job, const std::string& folder, int attempt,
                        const std::string& token, const std::string& array_name) {
  const Resources& resources = job.resources;
  const std::string per_node = job.several ? ".$(Node)" : "";
  // What the file asks for is of one slot: of a node, or of each process of several.
  const std::int64_t slots = job.several ? job.processes_per_node : 1;

  const bool is_alone = array_name.empty();
  std::string file =
      fmt::format("# Job{}, made by submit.\n",
                  is_alone ? fmt::format(" {}", job.index) : fmt::format("s {} and on", job.index));
  const Lines line = {file, "", " = "};
  if (job.several) {
    file += fmt::format(
        "# {} nodes with {} processes each. A process sees its slot only, so each has a slot of "
        "its own.\n",
        resources.nodes, job.processes_per_node);
    line("universe", "parallel");
    line("machine_count", resources.nodes * job.processes_per_node);
  } else {
    line("universe", "vanilla");
  }
  line("executable", condor_path("script_path", job.command.front()));
  line("transfer_executable", resources.transfer_files.empty() ? "False" : "True");
  line("arguments", is_alone ? condor_arguments({job.command.begin() + 1, job.command.end()})
                             : "\"$(ddp_arguments)\"");
  // A job that is started again has the same cluster id, and in its folder the address of the last
  // start: its processes find each other by the number of the start too.
  line("environment", fmt::format("\"DDP_JOB_ID=$(ClusterId){}{}\"", is_alone ? "" : ".$(ProcId)",
                                  job.several ? ".$$([NumJobStarts])" : ""));
  line("initialdir", condor_path("out_dir", folder) + (is_alone ? "" : "/$(ddp_folder)"));
  line("output", attempt_file(attempt, ".out") + per_node);
  line("error", attempt_file(attempt, ".err") + per_node);
  line("log", attempt_file(attempt, ".log"));
  if (resources.transfer_files.empty()) {
    file +=
        "# Program, data and folder are those of this machine: only nodes that see them suit.\n";
    line("should_transfer_files", "NO");
  } else {
    std::vector<std::string> paths;
    for (const std::string& path : resources.transfer_files) {
      paths.push_back(condor_path("transfer_files", path));
    }
    line("should_transfer_files", "YES");
    line("when_to_transfer_output", "ON_EXIT_OR_EVICT");
    line("transfer_input_files", fmt::format("{}", fmt::join(paths, ",")));
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
    file += "# Without this the end of the first process ends the others where they are.\n";
    line("+ParallelShutdownPolicy", "\"WAIT_FOR_ALL\"");
    file += "# Stopped with a good snapshot: back into the queue.\n";
    line("on_exit_remove", fmt::format("ExitCode =!= {}", kAgain));
  } else {
    file += "# Stopped with a good snapshot: started again.\n";
    line("checkpoint_exit_code", kAgain);
  }
  line("allowed_execute_duration", resources.time_s);
  line("accounting_group", resources.account);
  line("+Bid", resources.bid);
  line("batch_name", is_alone ? job.name : array_name);
  line("+SubmitToken", "\"" + token + "\"");
  line("notification", "Never");
  if (is_alone) {
    return file + "queue\n";
  }
  line("max_materialize", job.limit > 0 ? std::optional(job.limit) : std::nullopt);
  return file + fmt::format("queue ddp_folder,ddp_arguments from {}\n", kPointsFile);
}

std::string condor_file(const JobRequest& job, const std::string& folder, int attempt,
                        const std::string& token) {
  return description(job, folder, attempt, token, "");
}

/// @param folder of the array, two below out_dir
std::string condor_array(const JobRequest& first, const std::string& folder, int attempt,
                         const std::string& token, int /*count*/) {
  return description(first, absolute_path(folder, "../.."), attempt, token,
                     fmt::format("sweep-{}", first.index));
}

/// The folder below out_dir, which has no blank in it, and all the rest of the line.
std::string condor_point(const JobRequest& job, const std::string& /*folder*/) {
  const std::string arguments = condor_arguments({job.command.begin() + 1, job.command.end()});
  return job.folder + " " + arguments.substr(1, arguments.size() - 2);
}

/// In the parallel universe the jobs of a cluster are nodes of one job.
std::size_t most_in_a_cluster(const JobRequest& job) {
  return job.several ? 1 : std::numeric_limits<std::size_t>::max();
}

std::vector<std::string> condor_cancel_ids(const std::string& submission,
                                           const std::vector<std::string>& tasks) {
  std::vector<std::string> ids;
  for (const std::string& task : tasks) {
    ids.push_back(submission + "." + task);
  }
  return tasks.empty() ? std::vector<std::string>{submission} : ids;
}

/// "condor_q", the clusters that are asked about, and the options.
std::vector<std::string> about(const std::string& command, const Question& question,
                               const std::vector<std::string>& options) {
  std::vector<std::string> argv = {command};
  for (const auto& [id, count] : question.submissions) {
    argv.push_back(id);
  }
  argv.insert(argv.end(), options.begin(), options.end());
  return argv;
}

/// "12.0" as the state has it: alone a job is its cluster.
std::string known_id(const Question& question, const std::string& id) {
  const std::string cluster = parse_job_id(id).submission;
  const auto asked = question.submissions.find(cluster);
  return asked != question.submissions.end() && asked->second == 1 ? cluster : id;
}

Answer ask_condor_queue(const Question& question) {
  Answer answer;
  // First: a job that comes into the queue meanwhile is found there.
  if (question.is_limited) {
    const CommandResult waiting = run_command(
        about("condor_q", question, {"-factory", "-af", "ClusterId", "JobMaterializeNextProcId"}));
    for (const std::vector<std::string>& row : waiting.rows(' ', 2)) {
      const auto asked = question.submissions.find(row[0]);
      const std::optional<int> next = to_int(row[1]);
      for (int i = next.value_or(0);
           next && asked != question.submissions.end() && i < asked->second; ++i) {
        answer.findings[fmt::format("{}.{}", row[0], i)] = {JobState::kPending, std::nullopt,
                                                            "waits for others of its sweep"};
      }
    }
    answer.unreachable = waiting.failure;
  }
  const CommandResult queue =
      run_command(about("condor_q", question, {"-af:j", "JobStatus", "HoldReason"}));
  for (const std::vector<std::string>& row : queue.rows(' ', 3)) {
    if (const std::optional<Finding> finding = queued(row[1], row[2])) {
      answer.findings[known_id(question, row[0])] = *finding;
    }
  }
  answer.unreachable = queue.ok() ? answer.unreachable : queue.failure;
  return answer;
}

Findings ask_condor_history(const Question& question) {
  int jobs = 0;
  for (const auto& [id, count] : question.submissions) {
    jobs += count;
  }
  Findings findings;
  // Without a limit it reads years of other people's jobs.
  const CommandResult history = run_command(
      about("condor_history", question,
            {"-limit", std::to_string(jobs), "-af:j", "JobStatus", "ExitCode", "ExitSignal"}));
  for (const std::vector<std::string>& row : history.rows(' ', 4)) {
    findings[known_id(question, row[0])] =
        row[1] == "3" ? Finding{JobState::kCancelled} : ended(to_int(row[2]), to_int(row[3]));
  }
  return findings;
}

std::optional<Finding> read_condor_record(const Job& job, const std::string& folder) {
  const std::optional<CondorLog> log = read_log(job, folder);
  return log && log->id == parse_job_id(job.attempt.id).submission ? std::optional(log->finding)
                                                                   : std::nullopt;
}

Search find_in_condor(const Job& job, const std::string& folder,
                      const std::string& /*array_folder*/) {
  if (const std::optional<CondorLog> log = read_log(job, folder)) {
    return {log->id, ""};
  }
  const CommandResult queue =
      run_command({"condor_q", "-constraint", "SubmitToken == \"" + job.attempt.token + "\"", "-af",
                   "ClusterId"});
  const std::string id = split(queue.out, '\n')[0];
  return {queue.ok() && is_submission_id(Scheduler::kCondor, id) ? id : "", queue.failure};
}

}  // namespace

const ClusterScheduler& condor() {
  static const ClusterScheduler kCondor = {
      .file_name = "submission_file.sub",
      .submit_command = {"condor_submit", "-terse"},
      .cancel_command = "condor_rm",
      .cancel_ids = condor_cancel_ids,
      .file_text = condor_file,
      .array_text = condor_array,
      .point_line = condor_point,
      .most_together = most_in_a_cluster,
      .begin_after = nullptr,  // never needed: all are together
      .id_pattern = "([1-9]\\d*)\\.0 - \\1\\.(\\d+)\n?",  // first and last job of the cluster
      .ask_queue = ask_condor_queue,
      .ask_history = ask_condor_history,
      .read_record = read_condor_record,
      .lost = "neither HTCondor nor the job's log knows it",
      .find = find_in_condor,
  };
  return kCondor;
}

std::optional<CondorLog> parse_condor_log(std::string_view text) {
  constexpr std::string_view kSeparator = "\n...\n";
  static const std::map<std::string_view, JobState> kStates = {
      {"000", JobState::kPending},  // submitted
      {"001", JobState::kRunning},   {"004", JobState::kPending},  // evicted
      {"009", JobState::kCancelled}, {"013", JobState::kPending},  // released
  };
  std::optional<CondorLog> log;
  // What follows the last separator is still being written.
  for (std::size_t end = text.find(kSeparator); end != std::string_view::npos;
       end = text.find(kSeparator)) {
    const std::string_view event = text.substr(0, end);
    text.remove_prefix(end + kSeparator.size());
    // "005 (012.000.000) 2026-01-31 ..."
    constexpr std::size_t kIdStart = 5;
    const std::size_t dot = event.find('.');
    if (event.size() < kIdStart || event.substr(3, 2) != " (" || dot == std::string_view::npos) {
      continue;
    }
    std::string_view id = event.substr(kIdStart, dot - kIdStart);
    id.remove_prefix(std::min(id.find_first_not_of('0'), id.size()));
    const std::string_view kind = event.substr(0, 3);
    if (kind == "000") {
      log = CondorLog{std::string(id), {}};
    }
    if (!log || log->id != id) {
      continue;
    }
    if (const auto known = kStates.find(kind); known != kStates.end()) {
      log->finding = {known->second};
    } else if (kind == "005") {
      log->finding = parse_termination(event);
    } else if (kind == "012") {
      log->finding = {JobState::kHeld, std::nullopt, second_line(event)};
    }
  }
  return log;
}

}  // namespace ddp::submit
