// tools/submit/commands.cpp - submit, and its commands list, status, logs, cancel and resubmit.
#include "tools/submit/commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/handover.hpp"
#include "tools/submit/local_runner.hpp"
#include "tools/submit/process.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/state.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

namespace fs = std::filesystem;

constexpr int kDone = static_cast<int>(ExitCode::kDone);

void note(const std::string& text) {
  std::cerr << "submit: note: " + text + "\n";
}

/// Beside the build folder that this program is in, else on PATH.
std::string find_torchrun() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path ours = self.parent_path().parent_path().parent_path() / ".venv/bin/torchrun";
  if (!error && access(ours.c_str(), X_OK) == 0) {
    return ours.string();
  }
  const std::string found = find_program("torchrun");
  return found.empty() ? "" : fs::absolute(found).string();
}

Scheduler pick_scheduler(const CommandLine& line) {
  if (line.scheduler) {
    return *line.scheduler;
  }
  const bool has_condor = !find_program("condor_submit").empty();
  const bool has_slurm = !find_program("sbatch").empty();
  if (!has_condor && !has_slurm && !line.dry_run) {
    throw UsageError(
        "neither condor_submit nor sbatch is on PATH, expected a machine where jobs can be "
        "submitted, or --scheduler local");
  }
  return has_slurm && !has_condor ? Scheduler::kSlurm : Scheduler::kCondor;
}

void override_settings(const CommandLine& line, Settings& settings) {
  Resources& resources = settings.resources;
  resources.nodes = line.nodes.value_or(resources.nodes);
  if (line.gpus) {
    resources.gpus = static_cast<int>(line.gpus->size());
  }
  resources.time_s = line.time_s ? line.time_s : resources.time_s;
  resources.account = line.account.empty() ? resources.account : line.account;
  resources.partition = line.partition.empty() ? resources.partition : line.partition;
  settings.arguments = line.arguments.value_or(settings.arguments);
}

/// What the settings say and this scheduler has no use for.
void note_unused(const Resources& resources, Scheduler scheduler, const CommandLine& line) {
  std::vector<std::string> unused;
  const auto check = [&unused](bool given, const char* name, bool used) {
    if (given && !used) {
      unused.emplace_back(name);
    }
  };
  const bool condor = scheduler == Scheduler::kCondor;
  const bool slurm = scheduler == Scheduler::kSlurm;
  check(!resources.partition.empty(), "partition", slurm);
  check(!resources.constraint.empty(), "constraint", slurm);
  check(resources.bid.has_value(), "bid", condor);
  check(resources.time_s.has_value(), "time", condor || slurm);
  check(!resources.account.empty(), "account", condor || slurm);
  if (!unused.empty()) {
    note(any_of(unused) + " in the settings is not used with --scheduler " +
         std::string(scheduler_name(scheduler)));
  }
  const std::vector<int> gpus = line.gpus.value_or(std::vector<int>());
  for (std::size_t i = 0; i < gpus.size() && scheduler != Scheduler::kLocal; ++i) {
    if (gpus[i] != static_cast<int>(i)) {
      note("--gpus asks for " + std::to_string(gpus.size()) +
           " GPUs of each node; which ones, the scheduler decides");
      return;
    }
  }
}

/// Everything that would be written and run.
void print_job(const JobRequest& job, const std::string& out_dir, int attempt,
               const std::string& token) {
  const std::string folder = quote_path(out_dir + "/" + job.folder);
  if (job.scheduler == Scheduler::kLocal) {
    const JobFiles files = job_files(job, attempt);
    std::cout << "# in folder " << folder << ", output in " << files.out << " and " << files.err
              << '\n'
              << shell_line(job.command) << '\n';
    return;
  }
  std::cout << "# file " << quote_path(submission_path(job, out_dir)) << '\n'
            << submission_text(job, out_dir, attempt, token) << "# in folder " << folder << '\n'
            << shell_line(submission_command(job, out_dir)) << '\n';
}

/// A folder that no state knows of may hold another run's snapshot, which this one would resume.
void check_is_free(const std::vector<JobRequest>& requests, const std::string& out_dir) {
  for (const JobRequest& request : requests) {
    const std::string folder = out_dir + "/" + request.folder;
    if (fs::exists(fs::symlink_status(folder))) {
      throw UsageError(quote_path(folder) +
                       " is there but not in submissions, expected another out_dir or none of its "
                       "folders");
    }
    if (request.scheduler != Scheduler::kLocal) {
      check_submission_file(request, out_dir);
    }
  }
}

int submit_jobs(State& state, const std::vector<int>& indices) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Job& job = state.job(indices[i]);
    std::string left_out;
    try {
      left_out = submit_job(state, indices[i]);
    } catch (const Error& error) {
      const std::size_t left = indices.size() - i - 1;
      if (left == 0) {
        throw;
      }
      throw Error(error.code(), std::string(error.what()) + "; " + std::to_string(left) +
                                    " more jobs were not tried, `submit resubmit --failed` "
                                    "submits them");
    }
    std::cout << "job " << job.request.index << ' ' << job.request.name << ": "
              << (left_out.empty()
                      ? "submitted to " + std::string(scheduler_name(job.request.scheduler)) +
                            " as " + job.attempt.id + ", output in " +
                            quote_path(state.out_dir() + "/" + job.request.folder)
                      : "left out, " + left_out)
              << '\n'
              << std::flush;
  }
  return kDone;
}

/// The jobs that the line asks for, at the next free numbers.
std::vector<JobRequest> plan_at_end(const Settings& settings, PlanOptions options,
                                    const State& state) {
  options.first_index = static_cast<int>(state.jobs().size());
  std::vector<JobRequest> requests = plan_jobs(settings, options);
  check_is_free(requests, state.out_dir());
  for (const JobRequest& request : requests) {
    if (request.scheduler != Scheduler::kLocal) {
      // No job of a sweep is refused for its text after others were submitted.
      submission_text(request, state.out_dir(), 1, state.token(request.index, 1));
    }
  }
  return requests;
}

/// Plans the jobs in the out_dir. Others may take numbers, and make folders, at the same time.
State plan_in_state(const Settings& settings, const PlanOptions& options,
                    std::vector<JobRequest>& requests) {
  for (;;) {
    State state(settings.out_dir);
    try {
      requests = plan_at_end(settings, options, state);
    } catch (const UsageError&) {
      if (State(settings.out_dir).jobs().size() == state.jobs().size()) {
        throw;
      }
      continue;
    }
    if (state.plan(requests)) {
      return state;
    }
  }
}

int submit_new(const CommandLine& line) {
  Settings settings = read_settings(line.settings_file);
  override_settings(line, settings);
  PlanOptions options;
  options.scheduler = pick_scheduler(line);
  options.sweep = line.sweep;
  options.gpus = line.gpus.value_or(std::vector<int>());
  options.torchrun = find_torchrun();
  if (line.dry_run) {
    const State state(settings.out_dir);
    const std::vector<JobRequest> requests = plan_at_end(settings, options, state);
    note_unused(settings.resources, options.scheduler, line);
    for (const JobRequest& request : requests) {
      // An out_dir gets its number, which tokens start with, when it is first written to.
      print_job(request, settings.out_dir, 1,
                state.jobs().empty() ? "submit-NEW-" + std::to_string(request.index) + "-1"
                                     : state.token(request.index, 1));
    }
    return kDone;
  }
  std::vector<JobRequest> requests;
  State state = plan_in_state(settings, options, requests);
  note_unused(settings.resources, options.scheduler, line);
  std::vector<int> indices;
  for (const JobRequest& request : requests) {
    indices.push_back(request.index);
  }
  return options.scheduler == Scheduler::kLocal ? run_local_jobs(state, indices)
                                                : submit_jobs(state, indices);
}

/// The out_dir that a command is about, with its jobs.
State find_state(const CommandLine& line) {
  const std::string given = !line.settings_file.empty() ? read_settings(line.settings_file).out_dir
                            : line.out_dir.empty()      ? "."
                                                        : line.out_dir;
  std::string out_dir = fs::absolute(given).lexically_normal().string();
  if (out_dir.size() > 1 && out_dir.back() == '/') {
    out_dir.pop_back();
  }
  if (!State::exists(out_dir)) {
    throw UsageError("no submissions in " + quote_path(out_dir) +
                     ", expected --settings-file FILE or the out_dir of a submission");
  }
  return State(out_dir);
}

int resubmit(const CommandLine& line) {
  State state = find_state(line);
  const std::vector<std::string> unreachable = refresh(state);
  std::vector<int> indices = line.jobs;
  for (const int index : line.jobs) {
    if (const Job& job = state.job(index); !is_over(job.state())) {
      throw UsageError("job " + std::to_string(index) + " is " +
                       std::string(state_name(job.state())) +
                       ", expected one that is over; `submit cancel` ends it");
    }
  }
  for (const Job& job : state.jobs()) {
    if (line.failed && needs_resubmission(job.state())) {
      indices.push_back(job.request.index);
    }
  }
  for (const std::string& why : unreachable) {
    note(why + "; jobs that may still run are left alone");
  }
  if (line.dry_run) {
    for (const int index : indices) {
      const Job& job = state.job(index);
      const int attempt = job.attempt.number + 1;
      print_job(job.request, state.out_dir(), attempt, state.token(index, attempt));
    }
    return kDone;
  }
  if (indices.empty()) {
    std::cout << "nothing to resubmit\n";
  }
  const auto first_local = std::stable_partition(
      indices.begin(), indices.end(),
      [&state](int index) { return state.job(index).request.scheduler != Scheduler::kLocal; });
  const int remote_code = submit_jobs(state, {indices.begin(), first_local});
  const int local_code =
      first_local == indices.end() ? kDone : run_local_jobs(state, {first_local, indices.end()});
  const int code = remote_code != kDone ? remote_code : local_code;
  return code == kDone && !unreachable.empty() ? static_cast<int>(ExitCode::kTransient) : code;
}

std::string format_date(std::int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm local{};
  localtime_r(&time, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return unix_s == 0 ? "-" : text.data();
}

void print_table(const std::vector<Job>& jobs) {
  using Row = std::array<std::string, 7>;
  std::vector<Row> rows = {{"JOB", "NAME", "SCHEDULER", "ID", "STATE", "SUBMITTED", ""}};
  for (const Job& job : jobs) {
    const Attempt& attempt = job.attempt;
    const Finding& finding = attempt.finding;
    rows.push_back(
        {std::to_string(job.request.index), job.request.name,
         std::string(scheduler_name(job.request.scheduler)), attempt.id.empty() ? "-" : attempt.id,
         std::string(state_name(finding.state)), format_date(attempt.submitted_unix_s),
         finding.exit_code.value_or(0) != 0 ? "exit code " + std::to_string(*finding.exit_code)
                                            : finding.reason});
  }
  Row::size_type column = 0;
  std::array<std::size_t, 7> widths{};
  for (const Row& row : rows) {
    for (column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (column = 0; column < row.size(); ++column) {
      line += row[column] + std::string(widths[column] - row[column].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

void print_json(const std::vector<Job>& jobs, const std::string& out_dir,
                const std::vector<std::string>& unreachable) {
  nlohmann::ordered_json document = {{"schema_version", 1},
                                     {"out_dir", out_dir},
                                     {"unreachable", unreachable},
                                     {"jobs", nlohmann::ordered_json::array()}};
  for (const Job& job : jobs) {
    const Attempt& attempt = job.attempt;
    nlohmann::ordered_json entry = {{"job", job.request.index},
                                    {"name", job.request.name},
                                    {"scheduler", scheduler_name(job.request.scheduler)},
                                    {"id", nullptr},
                                    {"state", state_name(job.state())},
                                    {"exit_code", nullptr},
                                    {"reason", attempt.finding.reason},
                                    {"attempt", attempt.number},
                                    {"submitted_unix_s", attempt.submitted_unix_s},
                                    {"folder", out_dir + "/" + job.request.folder},
                                    {"command", job.request.command}};
    if (!attempt.id.empty()) {
      entry["id"] = attempt.id;
    }
    if (attempt.finding.exit_code) {
      entry["exit_code"] = *attempt.finding.exit_code;
    }
    document["jobs"].push_back(std::move(entry));
  }
  std::cout << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

/// `submit list`, and with the schedulers' answers `submit status`.
int show(const CommandLine& line) {
  State state = find_state(line);
  std::vector<std::string> unreachable;
  if (line.action == Action::kStatus) {
    unreachable = refresh(state);
  }
  std::vector<Job> picked;
  for (const int index : line.jobs) {
    picked.push_back(state.job(index));
  }
  const std::vector<Job>& jobs = line.jobs.empty() ? state.jobs() : picked;
  if (line.json) {
    print_json(jobs, state.out_dir(), unreachable);
  } else {
    print_table(jobs);
  }
  for (const std::string& why : unreachable) {
    note(why + "; its jobs are shown as they were last seen");
  }
  return static_cast<int>(unreachable.empty() ? ExitCode::kDone : ExitCode::kTransient);
}

/// Files with a job's output that are there.
std::vector<std::string> output_files(const Job& job, const std::string& out_dir) {
  const JobFiles files = job_files(job.request, job.attempt.number);
  std::vector<std::string> stems = {files.out, files.err};
  if (job.request.scheduler == Scheduler::kSlurm) {
    stems = {"job-" + slurm_number(job.attempt.id) + ".out"};
  }
  std::vector<std::string> found;
  for (const std::string& stem : stems) {
    std::vector<std::string> matching;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(out_dir + "/" + job.request.folder, error)) {
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

/// The last lines of a file, from its last MiB at most.
std::string tail(const std::string& path, int lines) {
  constexpr std::streamoff kMostBytes = std::streamoff{1} << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  file.seekg(std::max<std::streamoff>(0, file.tellg() - kMostBytes));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::size_t start = text.size();
  for (int i = 0; i < lines && start > 0; ++i) {
    const std::size_t newline = start < 2 ? std::string::npos : text.rfind('\n', start - 2);
    start = newline == std::string::npos ? 0 : newline + 1;
  }
  return text.substr(start);
}

int logs(const CommandLine& line) {
  const State state = find_state(line);
  if (line.jobs.empty()) {
    for (const Job& job : state.jobs()) {
      for (const std::string& path : output_files(job, state.out_dir())) {
        std::cout << quote_path(path) << '\n';
      }
    }
  }
  for (const int index : line.jobs) {
    const Job& job = state.job(index);
    const std::vector<std::string> files = output_files(job, state.out_dir());
    if (files.empty()) {
      throw Error(ExitCode::kTrainingFailed,
                  "job " + std::to_string(index) + " is " + std::string(state_name(job.state())) +
                      " and has no output yet in " +
                      quote_path(state.out_dir() + "/" + job.request.folder));
    }
    for (const std::string& path : files) {
      std::cout << "==> " << quote_path(path) << " <==\n" << tail(path, line.lines);
    }
  }
  return kDone;
}

/// @return one line: why it still runs or waits; empty: it ends, or will not begin
std::string end_job(State& state, int index) {
  const Job& job = state.job(index);
  const Finding cancelled = {JobState::kCancelled, std::nullopt, ""};
  if (job.state() == JobState::kPlanned) {
    if (state.begin(index, cancelled)) {
      return "";
    }
    return "it is " + std::string(state_name(state.read_again(index).state())) +
           " by now, expected one that nobody submits";
  }
  if (job.attempt.id.empty()) {
    return "it is " + std::string(state_name(job.state())) +
           ", expected a known id; `submit status` looks for it";
  }
  if (job.request.scheduler != Scheduler::kLocal) {
    const bool is_slurm = job.request.scheduler == Scheduler::kSlurm;
    const std::string failure =
        run_command({is_slurm ? "scancel" : "condor_rm",
                     is_slurm ? slurm_number(job.attempt.id) : job.attempt.id})
            .failure;
    if (!failure.empty()) {
      return failure;
    }
  }
  // The submit that runs a local job looks at its record, wherever that is.
  if (!is_over(state.read_again(index).state())) {
    state.update(index, cancelled);
  }
  return "";
}

int cancel(const CommandLine& line) {
  State state = find_state(line);
  std::vector<int> indices = line.jobs;
  for (const Job& job : state.jobs()) {
    if (line.all && (!is_over(job.state()) || job.state() == JobState::kPlanned)) {
      indices.push_back(job.request.index);
    }
  }
  for (const int index : indices) {
    static_cast<void>(state.job(index));  // all are there, or none is cancelled
  }
  bool all_cancelled = true;
  for (const int index : indices) {
    const std::string name = "job " + std::to_string(index);
    const JobState known = state.job(index).state();
    if (is_over(known) && known != JobState::kPlanned) {
      std::cout << name << " is " << state_name(known) << " already\n";
    } else if (const std::string failure = end_job(state, index); !failure.empty()) {
      std::cerr << "submit: error: " + name + ": " + failure + "\n";
      all_cancelled = false;
    } else if (state.job(index).state() != JobState::kCancelled) {
      std::cout << name << " is " << state_name(state.job(index).state()) << " already\n";
    } else {
      std::cout << name << " cancelled\n";
    }
  }
  return static_cast<int>(all_cancelled ? ExitCode::kDone : ExitCode::kTrainingFailed);
}

}  // namespace

int run(const CommandLine& line) {
  switch (line.action) {
    case Action::kList:
    case Action::kStatus:
      return show(line);
    case Action::kLogs:
      return logs(line);
    case Action::kCancel:
      return cancel(line);
    case Action::kResubmit:
      return resubmit(line);
    case Action::kSubmit:
      break;
  }
  return submit_new(line);
}

}  // namespace ddp::submit
