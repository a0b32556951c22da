// tools/submit/condor_scheduler.cpp - what HTCondor says about jobs.
#include <algorithm>
#include <charconv>

#include "tools/submit/command.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/submission_file.hpp"

namespace ddp::submit {
namespace {

constexpr std::string_view kDigits = "0123456789";

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<int>(value)
                                                                  : std::nullopt;
}

Finding ended(std::optional<int> exit_code, const std::string& signal) {
  if (exit_code) {
    return {*exit_code == 0 ? JobState::kDone : JobState::kFailed, exit_code, ""};
  }
  return {JobState::kFailed, std::nullopt,
          signal.empty() ? "ended in an unknown way" : "ended by signal " + signal};
}

/// JobStatus of a job in the queue.
std::optional<Finding> queued(std::string_view status, const std::string& hold_reason) {
  const std::optional<int> code = to_int(status);
  switch (code.value_or(0)) {
    case 1:
      return Finding{JobState::kPending, std::nullopt, ""};
    case 2:  // running
    case 6:  // sends its output
    case 7:  // suspended
      return Finding{JobState::kRunning, std::nullopt, ""};
    case 3:
      return Finding{JobState::kCancelled, std::nullopt, ""};
    case 5:
      return Finding{JobState::kHeld, std::nullopt, hold_reason};
    default:
      return std::nullopt;  // 4, completed, is about to be in the history
  }
}

/// "(1) Normal termination (return value 3)" or "(0) Abnormal termination (signal 9)"
Finding parse_termination(std::string_view event) {
  const auto number_after = [event](std::string_view words) -> std::string {
    const std::size_t start = event.find(words);
    if (start == std::string_view::npos) {
      return "";
    }
    const std::string_view rest = event.substr(start + words.size());
    return std::string(rest.substr(0, rest.find_first_not_of(kDigits)));
  };
  return ended(to_int(number_after("(return value ")), number_after("(signal "));
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
  if (!history.ok()) {
    return;
  }
  for (const std::string& line : split(history.out, '\n', history.out.size() + 1)) {
    const std::vector<std::string> words = split(line, ' ', 4);
    const auto found = missing.find(words[0]);
    if (words.size() == 4 && found != missing.end()) {
      answer.findings[found->second->request.index] =
          words[1] == "3" ? Finding{JobState::kCancelled, std::nullopt, ""}
                          : ended(to_int(words[2]), to_int(words[3]) ? words[3] : "");
    }
  }
}

}  // namespace

std::optional<std::string> parse_condor_id(std::string_view out) {
  // "12.0 - 12.0": first and last job of the cluster.
  const std::string id(out.substr(0, out.find_first_not_of(kDigits)));
  const std::string range = id + ".0 - " + id + ".0";
  const bool is_all = out == range || out == range + "\n";
  return is_all && !id.empty() ? std::optional<std::string>(id) : std::nullopt;
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
      const std::vector<std::string> lines = split(event, '\n', 3);
      const std::size_t start = lines.size() > 1 ? lines[1].find_first_not_of(" \t") : 0;
      log->finding = {JobState::kHeld, std::nullopt,
                      lines.size() > 1 && start != std::string::npos ? lines[1].substr(start) : ""};
    }
  }
  return log;
}

Answer ask_condor(const std::vector<const Job*>& jobs, const std::string& out_dir) {
  Answer answer;
  ById missing;
  std::vector<std::string> argv = {"condor_q"};
  for (const Job* const job : jobs) {
    missing[job->id] = job;
    argv.push_back(job->id);
  }
  argv.insert(argv.end(), {"-af", "ClusterId", "JobStatus", "HoldReason"});
  const CommandResult queue = run_command(argv);
  if (queue.ok()) {
    for (const std::string& line : split(queue.out, '\n', queue.out.size() + 1)) {
      const std::vector<std::string> words = split(line, ' ', 3);
      const auto found = missing.find(words[0]);
      if (words.size() < 3 || found == missing.end()) {
        continue;
      }
      if (const auto finding = queued(words[1], words[2] == "undefined" ? "" : words[2])) {
        answer.findings[found->second->request.index] = *finding;
        missing.erase(found);
      }
    }
    if (!missing.empty()) {
      ask_history(missing, answer);
    }
  } else {
    answer.unreachable = queue.failure;
  }
  // Its own log needs nobody to answer, and outlives the history.
  for (const auto& [id, job] : missing) {
    if (answer.findings.count(job->request.index) > 0) {
      continue;
    }
    const std::string path =
        out_dir + "/" + job->request.folder + "/" + job_files(job->request, job->attempt).log;
    const std::optional<std::string> text = read_text(path);
    const std::optional<CondorLog> log = text ? parse_condor_log(*text) : std::nullopt;
    if (log && log->id == id) {
      answer.findings[job->request.index] = log->finding;
    } else if (queue.ok()) {
      answer.findings[job->request.index] = {JobState::kLost, std::nullopt,
                                             "neither HTCondor nor the job's log knows it"};
    }
  }
  return answer;
}

Search find_in_condor(const Job& job, const std::string& out_dir) {
  const std::string path =
      out_dir + "/" + job.request.folder + "/" + job_files(job.request, job.attempt).log;
  const std::optional<std::string> text = read_text(path);
  if (const std::optional<CondorLog> log = text ? parse_condor_log(*text) : std::nullopt) {
    return {log->id, ""};
  }
  const CommandResult queue =
      run_command({"condor_q", "-constraint", "SubmitToken == " + classad_string(job.token), "-af",
                   "ClusterId"});
  if (!queue.ok()) {
    return {"", queue.failure};
  }
  const std::string id = queue.out.substr(0, queue.out.find('\n'));
  return {!id.empty() && id.find_first_not_of(kDigits) == std::string::npos ? id : "", ""};
}

}  // namespace ddp::submit
