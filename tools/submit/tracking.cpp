#include "tools/submit/tracking.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/settings.hpp"
#include "tools/submit/submission.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

namespace fs = std::filesystem;

using Row = std::array<std::string, 7>;

std::string format_date(std::int64_t unix_s) {
  if (unix_s == 0) {
    return "-";
  }
  const std::time_t time = unix_s;
  std::tm local{};
  localtime_r(&time, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

Row make_row(const Job& job) {
  return {std::to_string(job.request.index),
          job.request.name,
          std::string(scheduler_name(job.request.scheduler)),
          or_dash(job.id),
          std::string(state_name(job.state)),
          format_date(job.submitted_unix_s),
          job.exit_code && *job.exit_code != 0 ? "exit code " + std::to_string(*job.exit_code)
                                               : job.reason};
}

void print_table(const std::vector<Row>& rows) {
  std::array<std::size_t, 7> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

nlohmann::ordered_json describe(const Job& job, const std::string& out_dir) {
  nlohmann::ordered_json result = {{"job", job.request.index},
                                   {"name", job.request.name},
                                   {"scheduler", scheduler_name(job.request.scheduler)},
                                   {"id", nullptr},
                                   {"state", state_name(job.state)},
                                   {"exit_code", nullptr},
                                   {"reason", job.reason},
                                   {"attempt", job.attempt},
                                   {"submitted_unix_s", job.submitted_unix_s},
                                   {"folder", out_dir + "/" + job.request.folder},
                                   {"command", job.request.command}};
  if (!job.id.empty()) {
    result["id"] = job.id;
  }
  if (job.exit_code) {
    result["exit_code"] = *job.exit_code;
  }
  return result;
}

using Ask = Answer (*)(const std::vector<const Job*>&, const std::string&);

Ask asker(Scheduler scheduler) {
  switch (scheduler) {
    case Scheduler::kSlurm:
      return ask_slurm;
    case Scheduler::kLocal:
      return ask_local;
    case Scheduler::kCondor:
      break;
  }
  return ask_condor;
}

}  // namespace

std::string find_out_dir(const CommandLine& line) {
  std::error_code error;
  const std::string given = line.settings_file.empty() ? (line.out_dir.empty() ? "." : line.out_dir)
                                                       : read_out_dir(line.settings_file);
  const std::string out_dir = fs::absolute(given, error).lexically_normal().string();
  const bool ends_in_slash = out_dir.size() > 1 && out_dir.back() == '/';
  const std::string folder = ends_in_slash ? out_dir.substr(0, out_dir.size() - 1) : out_dir;
  if (!StateFile::exists(folder)) {
    throw UsageError("no submissions in " + quote_path(folder) +
                     ", expected --settings-file FILE or the out_dir of a submission");
  }
  return folder;
}

std::vector<std::string> refresh(StateFile& state) {
  std::set<std::string> unreachable;
  for (std::size_t i = 0; i < state.jobs().size(); ++i) {
    if (state.jobs()[i].state == JobState::kSubmitting) {
      unreachable.insert(settle(state, static_cast<int>(i)));
    }
  }
  for (const Scheduler scheduler : {Scheduler::kCondor, Scheduler::kSlurm, Scheduler::kLocal}) {
    std::vector<const Job*> jobs;
    for (const Job& job : state.jobs()) {
      const bool is_open = !is_over(job.state) && job.state != JobState::kSubmitting;
      if (is_open && job.request.scheduler == scheduler) {
        jobs.push_back(&job);
      }
    }
    if (jobs.empty()) {
      continue;
    }
    const Answer answer = asker(scheduler)(jobs, state.out_dir());
    for (const auto& [index, finding] : answer.findings) {
      state.update(index, finding.state, finding.exit_code, finding.reason);
    }
    unreachable.insert(answer.unreachable);
  }
  unreachable.erase("");
  return {unreachable.begin(), unreachable.end()};
}

void print_jobs(const StateFile& state, const std::vector<int>& picked, bool json,
                const std::vector<std::string>& unreachable) {
  std::vector<const Job*> jobs;
  for (const int index : picked) {
    jobs.push_back(&state.job(index));
  }
  if (picked.empty()) {
    for (const Job& job : state.jobs()) {
      jobs.push_back(&job);
    }
  }
  if (json) {
    nlohmann::ordered_json document = {{"schema_version", 1},
                                       {"out_dir", state.out_dir()},
                                       {"unreachable", unreachable},
                                       {"jobs", nlohmann::ordered_json::array()}};
    for (const Job* const job : jobs) {
      document["jobs"].push_back(describe(*job, state.out_dir()));
    }
    std::cout << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    return;
  }
  std::vector<Row> rows = {{"JOB", "NAME", "SCHEDULER", "ID", "STATE", "SUBMITTED", ""}};
  for (const Job* const job : jobs) {
    rows.push_back(make_row(*job));
  }
  print_table(rows);
}

std::vector<std::string> output_files(const Job& job, const std::string& out_dir) {
  const fs::path folder = out_dir + "/" + job.request.folder;
  std::vector<std::string> stems;
  if (job.request.scheduler == Scheduler::kSlurm) {
    if (!job.id.empty()) {
      stems = {"job-" + job.id.substr(0, job.id.find(';')) + ".out"};
    }
  } else {
    const JobFiles files = job_files(job.request, std::max(job.attempt, 1));
    stems = {files.out, files.err};
  }
  std::vector<std::string> found;
  std::error_code error;
  for (const std::string& stem : stems) {
    std::vector<std::string> matching;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      // Of several nodes each has its own: job.out.0
      const std::string name = entry.path().filename().string();
      if (name == stem || name.starts_with(stem + ".")) {
        matching.push_back(entry.path().string());
      }
    }
    std::sort(matching.begin(), matching.end());
    found.insert(found.end(), matching.begin(), matching.end());
  }
  return found;
}

}  // namespace ddp::submit
