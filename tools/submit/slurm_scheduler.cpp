// tools/submit/slurm_scheduler.cpp - what Slurm says about jobs.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tools/submit/command.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

constexpr std::string_view kDigits = "0123456789";

struct QueueLine {
  std::string id;
  std::string state;
  std::string reason;
  std::string comment;
};

struct Queue {
  std::vector<QueueLine> lines;
  std::string unreachable;
};

/// All of this user's jobs that the controller still knows, over or not.
Queue ask_queue() {
  const CommandResult squeue =
      run_command({"squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%k"});
  Queue queue;
  queue.unreachable = squeue.failure;
  if (squeue.ok()) {
    for (const std::string& line : split(squeue.out, '\n', squeue.out.size() + 1)) {
      std::vector<std::string> parts = split(line, '|', 4);
      if (parts.size() == 4) {
        queue.lines.push_back(
            {std::move(parts[0]), std::move(parts[1]), std::move(parts[2]), std::move(parts[3])});
      }
    }
  }
  return queue;
}

/// An id may have the cluster behind a semicolon, as sbatch prints it.
std::string number_of(const std::string& id) {
  return id.substr(0, id.find(';'));
}

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<int>(value)
                                                                  : std::nullopt;
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
  if (!sacct.ok()) {
    return;
  }
  for (const std::string& line : split(sacct.out, '\n', sacct.out.size() + 1)) {
    const std::vector<std::string> parts = split(line, '|', 3);
    const auto found = jobs.find(parts[0]);
    if (parts.size() != 3 || found == jobs.end()) {
      continue;
    }
    // "CANCELLED by 1000", "1:0" is code and signal.
    Finding finding = slurm_finding(split(parts[1], ' ', 2)[0], "");
    const std::vector<std::string> code = split(parts[2], ':', 2);
    if (finding.state == JobState::kFailed || finding.state == JobState::kDone) {
      finding.exit_code = to_int(code[0]);
    }
    answer.findings[found->second->request.index] = finding;
  }
}

/// What the job's own script has written down.
std::optional<int> own_exit_code(const Job& job, const std::string& out_dir) {
  const std::string path =
      out_dir + "/" + job.request.folder + "/" + job_files(job.request, job.attempt).exit_code;
  const std::optional<std::string> text = read_text(path);
  if (!text) {
    return std::nullopt;
  }
  const std::vector<std::string> words = split(text->substr(0, text->find('\n')), ' ', 2);
  return words.size() == 2 && words[0] == number_of(job.id) ? to_int(words[1]) : std::nullopt;
}

}  // namespace

std::optional<std::string> parse_slurm_id(std::string_view out) {
  // "1234" or, on a federation, "1234;cluster"
  const std::string_view line = out.substr(0, out.find('\n'));
  const std::string_view number = line.substr(0, line.find_first_not_of(kDigits));
  std::string_view cluster = line.substr(number.size());
  const bool named = !cluster.empty();
  const bool ends_well = out.size() <= line.size() + 1;
  if (named) {
    cluster.remove_prefix(1);
  }
  const bool formed =
      !number.empty() && number.front() != '0' && ends_well &&
      (!named || (line[number.size()] == ';' && !cluster.empty() && is_plain(cluster, "_.-")));
  return formed ? std::optional<std::string>(line) : std::nullopt;
}

Finding slurm_finding(std::string_view state, const std::string& reason) {
  static constexpr std::array<std::pair<std::string_view, JobState>, 14> kStates = {{
      {"PENDING", JobState::kPending},
      {"CONFIGURING", JobState::kPending},
      {"REQUEUED", JobState::kPending},
      {"REQUEUE_FED", JobState::kPending},
      {"REQUEUE_HOLD", JobState::kHeld},
      {"SPECIAL_EXIT", JobState::kHeld},
      {"RESV_DEL_HOLD", JobState::kHeld},
      {"RUNNING", JobState::kRunning},
      {"COMPLETING", JobState::kRunning},
      {"SUSPENDED", JobState::kRunning},
      {"STOPPED", JobState::kRunning},
      {"SIGNALING", JobState::kRunning},
      {"COMPLETED", JobState::kDone},
      {"CANCELLED", JobState::kCancelled},
  }};
  for (const auto& [name, known] : kStates) {
    if (name == state) {
      const bool is_held = known == JobState::kPending && reason.starts_with("JobHeld");
      const bool waits = known == JobState::kPending || known == JobState::kHeld;
      Finding finding = {is_held ? JobState::kHeld : known, std::nullopt,
                         waits && reason != "None" ? reason : ""};
      if (known == JobState::kDone) {
        finding.exit_code = 0;
      }
      return finding;
    }
  }
  return {JobState::kFailed, std::nullopt, "Slurm says " + std::string(state)};
}

Answer ask_slurm(const std::vector<const Job*>& jobs, const std::string& out_dir) {
  Answer answer;
  const Queue queue = ask_queue();
  answer.unreachable = queue.unreachable;
  ById missing;
  for (const Job* const job : jobs) {
    missing[number_of(job->id)] = job;
  }
  for (const QueueLine& line : queue.lines) {
    const auto found = missing.find(line.id);
    if (found == missing.end()) {
      continue;
    }
    const Finding finding = slurm_finding(line.state, line.reason);
    answer.findings[found->second->request.index] = finding;
    // squeue does not tell the exit code.
    if (finding.state != JobState::kFailed) {
      missing.erase(found);
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
  for (const QueueLine& line : queue.lines) {
    if (line.comment == job.token) {
      return {line.id, ""};
    }
  }
  // It may be over and forgotten: then its output is there, under a name with the id.
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(out_dir + "/" + job.request.folder, error)) {
    constexpr std::string_view kStart = "job-";
    constexpr std::string_view kEnd = ".out";
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kStart) || !name.ends_with(kEnd) ||
        name.size() <= kStart.size() + kEnd.size()) {
      continue;
    }
    const std::string id = name.substr(kStart.size(), name.size() - kStart.size() - kEnd.size());
    const bool is_earlier =
        std::any_of(job.earlier_ids.begin(), job.earlier_ids.end(),
                    [&id](const std::string& earlier) { return number_of(earlier) == id; });
    if (id.find_first_not_of(kDigits) == std::string::npos && !is_earlier) {
      return {id, ""};
    }
  }
  return {"", queue.unreachable};
}

}  // namespace ddp::submit
