// tools/submit/condor_scheduler.cpp - what HTCondor's queue, history and job logs say about jobs.
#include <algorithm>
#include <regex>

#include "tools/submit/process.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

Finding ended(std::optional<int> exit_code, std::optional<int> signal) {
  if (exit_code) {
    return {*exit_code == 0 ? JobState::kDone : JobState::kFailed, exit_code, ""};
  }
  return {JobState::kFailed, std::nullopt,
          signal ? "ended by signal " + std::to_string(*signal) : "ended in an unknown way"};
}

/// JobStatus of a job in the queue.
std::optional<Finding> queued(const std::string& status, const std::string& hold_reason) {
  switch (to_int(status).value_or(0)) {
    case 1:
      return Finding{JobState::kPending, std::nullopt, ""};
    case 2:  // running
    case 6:  // sends its output
    case 7:  // suspended
      return Finding{JobState::kRunning, std::nullopt, ""};
    case 3:
      return Finding{JobState::kCancelled, std::nullopt, ""};
    case 5:
      return Finding{JobState::kHeld, std::nullopt, hold_reason == "undefined" ? "" : hold_reason};
    default:
      return std::nullopt;  // 4, completed, is about to be in the history
  }
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
std::string hold_reason(std::string_view event) {
  const std::vector<std::string> lines = split(event, '\n', 3);
  const std::size_t start =
      lines.size() > 1 ? lines[1].find_first_not_of(" \t") : std::string::npos;
  return start == std::string::npos ? "" : lines[1].substr(start);
}

std::optional<CondorLog> read_log(const Job& job, const std::string& out_dir) {
  const std::optional<std::string> text = read_text(out_dir + "/" + job.request.folder + "/" +
                                                    job_files(job.request, job.attempt.number).log);
  return text ? parse_condor_log(*text) : std::nullopt;
}

using ById = std::map<std::string, const Job*>;

void ask_history(const ById& missing, Answer& answer) {
  std::vector<std::string> argv = {"condor_history"};
  for (const auto& [id, job] : missing) {
    argv.push_back(id);
  }
  // Without a limit it reads years of other people's jobs.
  argv.insert(argv.end(), {"-limit", std::to_string(missing.size()), "-af", "ClusterId",
                           "JobStatus", "ExitCode", "ExitSignal"});
  const CommandResult history = run_command(argv);
  for (const std::string& line : split(history.ok() ? history.out : "", '\n')) {
    const std::vector<std::string> words = split(line, ' ', 4);
    const auto found = missing.find(words[0]);
    if (words.size() == 4 && found != missing.end()) {
      answer.findings[found->second->request.index] =
          words[1] == "3" ? Finding{JobState::kCancelled, std::nullopt, ""}
                          : ended(to_int(words[2]), to_int(words[3]));
    }
  }
}

}  // namespace

std::optional<std::string> parse_condor_id(const std::string& out) {
  // First and last job of the cluster.
  static const std::regex kRange("(\\d+)\\.0 - \\1\\.0\n?");
  std::smatch parts;
  const bool is_all = out.size() < 100 && std::regex_match(out, parts, kRange);
  return is_all ? std::optional<std::string>(parts[1]) : std::nullopt;
}

std::optional<CondorLog> parse_condor_log(std::string_view text) {
  constexpr std::string_view kSeparator = "\n...\n";
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
      log = CondorLog{std::string(id), {JobState::kPending, std::nullopt, ""}};
    }
    if (!log || log->id != id) {
      continue;
    }
    if (kind == "001") {
      log->finding = {JobState::kRunning, std::nullopt, ""};
    } else if (kind == "004" || kind == "013") {  // evicted, released
      log->finding = {JobState::kPending, std::nullopt, ""};
    } else if (kind == "005") {
      log->finding = parse_termination(event);
    } else if (kind == "009") {
      log->finding = {JobState::kCancelled, std::nullopt, ""};
    } else if (kind == "012") {
      log->finding = {JobState::kHeld, std::nullopt, hold_reason(event)};
    }
  }
  return log;
}

Answer ask_condor(const std::vector<const Job*>& jobs, const std::string& out_dir) {
  Answer answer;
  ById missing;
  std::vector<std::string> argv = {"condor_q"};
  for (const Job* const job : jobs) {
    missing[job->attempt.id] = job;
    argv.push_back(job->attempt.id);
  }
  argv.insert(argv.end(), {"-af", "ClusterId", "JobStatus", "HoldReason"});
  const CommandResult queue = run_command(argv);
  answer.unreachable = queue.failure;
  for (const std::string& line : split(queue.ok() ? queue.out : "", '\n')) {
    const std::vector<std::string> words = split(line, ' ', 3);
    const auto found = missing.find(words[0]);
    if (words.size() < 3 || found == missing.end()) {
      continue;
    }
    if (const auto finding = queued(words[1], words[2])) {
      answer.findings[found->second->request.index] = *finding;
      missing.erase(found);
    }
  }
  if (queue.ok() && !missing.empty()) {
    ask_history(missing, answer);
  }
  // Its own log needs nobody to answer, and outlives the history.
  for (const auto& [id, job] : missing) {
    const int index = job->request.index;
    if (answer.findings.count(index) > 0) {
      continue;
    }
    const std::optional<CondorLog> log = read_log(*job, out_dir);
    if (log && log->id == id) {
      answer.findings[index] = log->finding;
    } else if (queue.ok()) {
      answer.findings[index] = {JobState::kLost, std::nullopt,
                                "neither HTCondor nor the job's log knows it"};
    }
  }
  return answer;
}

Search find_in_condor(const Job& job, const std::string& out_dir) {
  if (const std::optional<CondorLog> log = read_log(job, out_dir)) {
    return {log->id, ""};
  }
  const CommandResult queue =
      run_command({"condor_q", "-constraint", "SubmitToken == \"" + job.attempt.token + "\"", "-af",
                   "ClusterId"});
  const std::string id = split(queue.out, '\n')[0];
  return {queue.ok() && is_digits(id) ? id : "", queue.failure};
}

}  // namespace ddp::submit
