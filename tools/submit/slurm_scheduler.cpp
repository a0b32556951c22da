// tools/submit/slurm_scheduler.cpp - what Slurm's controller and accounting say about jobs.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <system_error>

#include "tools/submit/process.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

/// All of this user's jobs that the controller still knows, over or not: id, state, reason,
/// comment.
struct Queue {
  std::vector<std::vector<std::string>> lines;
  std::string unreachable;
};

Queue ask_queue() {
  const CommandResult squeue =
      run_command({"squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%k"});
  Queue queue;
  queue.unreachable = squeue.failure;
  for (const std::string& line : split(squeue.ok() ? squeue.out : "", '\n')) {
    if (std::vector<std::string> parts = split(line, '|', 4); parts.size() == 4) {
      queue.lines.push_back(std::move(parts));
    }
  }
  return queue;
}

/// Slurm's word for a job's state. @param reason of the state, as squeue prints it
Finding slurm_finding(const std::string& state, const std::string& reason) {
  static const std::map<std::string, JobState> kSlurmStates = {
      {"PENDING", JobState::kPending},    {"CONFIGURING", JobState::kPending},
      {"REQUEUED", JobState::kPending},   {"REQUEUE_FED", JobState::kPending},
      {"REQUEUE_HOLD", JobState::kHeld},  {"SPECIAL_EXIT", JobState::kHeld},
      {"RESV_DEL_HOLD", JobState::kHeld}, {"RUNNING", JobState::kRunning},
      {"COMPLETING", JobState::kRunning}, {"SUSPENDED", JobState::kRunning},
      {"STOPPED", JobState::kRunning},    {"SIGNALING", JobState::kRunning},
      {"COMPLETED", JobState::kDone},     {"CANCELLED", JobState::kCancelled},
  };
  const auto found = kSlurmStates.find(state);
  if (found == kSlurmStates.end()) {
    return {JobState::kFailed, std::nullopt, "Slurm says " + state};
  }
  const JobState known = found->second;
  const bool waits = known == JobState::kPending || known == JobState::kHeld;
  return {waits && reason.starts_with("JobHeld") ? JobState::kHeld : known,
          known == JobState::kDone ? std::optional<int>(0) : std::nullopt,
          waits && reason != "None" ? reason : ""};
}

using ById = std::map<std::string, const Job*>;

/// The accounting remembers what the controller has forgotten, where there is one.
void ask_accounting(const ById& jobs, Answer& answer) {
  std::string ids;
  for (const auto& [id, job] : jobs) {
    ids += (ids.empty() ? "" : ",") + id;
  }
  const CommandResult sacct = run_command({"sacct", "--noheader", "--parsable2", "--allocations",
                                           "--format=JobIDRaw,State,ExitCode", "--jobs=" + ids});
  for (const std::string& line : split(sacct.ok() ? sacct.out : "", '\n')) {
    const std::vector<std::string> parts = split(line, '|', 3);
    const auto found = jobs.find(parts[0]);
    if (parts.size() == 3 && found != jobs.end()) {
      // "CANCELLED by 1000", "1:0" is code and signal.
      Finding finding = slurm_finding(split(parts[1], ' ', 2)[0], "");
      if (finding.state == JobState::kFailed || finding.state == JobState::kDone) {
        finding.exit_code = to_int(split(parts[2], ':', 2)[0]);
      }
      answer.findings[found->second->request.index] = finding;
    }
  }
}

/// What the job's own script has written down.
std::optional<int> own_exit_code(const Job& job, const std::string& out_dir) {
  const std::optional<std::string> text =
      read_text(out_dir + "/" + job.request.folder + "/" + job_files(job.request, 1).exit_code);
  const std::vector<std::string> words = split(split(text.value_or(""), '\n')[0], ' ', 2);
  const bool is_its = words.size() == 2 && words[0] == slurm_number(job.attempt.id);
  return is_its ? to_int(words[1]) : std::nullopt;
}

}  // namespace

std::string slurm_number(const std::string& id) {
  return id.substr(0, id.find(';'));
}

std::optional<std::string> parse_slurm_id(const std::string& out) {
  // "1234" or, on a federation, "1234;cluster"
  static const std::regex kId("([1-9]\\d*(;[\\w.-]+)?)\n?");
  std::smatch parts;
  const bool is_all = out.size() < 200 && std::regex_match(out, parts, kId);
  return is_all ? std::optional<std::string>(parts[1]) : std::nullopt;
}

Answer ask_slurm(const std::vector<const Job*>& jobs, const std::string& out_dir) {
  Answer answer;
  const Queue queue = ask_queue();
  answer.unreachable = queue.unreachable;
  ById missing;
  for (const Job* const job : jobs) {
    missing[slurm_number(job->attempt.id)] = job;
  }
  for (const std::vector<std::string>& line : queue.lines) {
    if (const auto found = missing.find(line[0]); found != missing.end()) {
      const Finding finding = slurm_finding(line[1], line[2]);
      answer.findings[found->second->request.index] = finding;
      // squeue does not tell the exit code.
      if (finding.state != JobState::kFailed) {
        missing.erase(found);
      }
    }
  }
  if (!missing.empty() && queue.unreachable.empty()) {
    ask_accounting(missing, answer);
  }
  for (const auto& [id, job] : missing) {
    const auto found = answer.findings.find(job->request.index);
    const std::optional<int> code = own_exit_code(*job, out_dir);
    if (found != answer.findings.end()) {
      if (found->second.state == JobState::kFailed && !found->second.exit_code) {
        found->second.exit_code = code;
      }
    } else if (code) {
      answer.findings[job->request.index] = {*code == 0 ? JobState::kDone : JobState::kFailed, code,
                                             ""};
    } else if (queue.unreachable.empty()) {
      answer.findings[job->request.index] = {
          JobState::kLost, std::nullopt,
          "Slurm does not know it any more, and it left no exit code"};
    }
  }
  return answer;
}

Search find_in_slurm(const Job& job, const std::string& out_dir) {
  const Queue queue = ask_queue();
  for (const std::vector<std::string>& line : queue.lines) {
    if (line[3] == job.attempt.token) {
      return {line[0], ""};
    }
  }
  // It may be over and forgotten: then its output is there, under a name with the id.
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(out_dir + "/" + job.request.folder, error)) {
    static const std::regex kOutput("job-(\\d+)\\.out");
    const std::string name = entry.path().filename().string();
    std::smatch parts;
    const auto is_its = [&parts](const std::string& id) { return slurm_number(id) == parts[1]; };
    const std::vector<std::string>& earlier = job.attempt.earlier_ids;
    if (std::regex_match(name, parts, kOutput) &&
        std::none_of(earlier.begin(), earlier.end(), is_its)) {
      return {parts[1], ""};
    }
  }
  return {"", queue.unreachable};
}

}  // namespace ddp::submit
