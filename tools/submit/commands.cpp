// tools/submit/commands.cpp - submit, and its commands list, status, logs, cancel and resubmit.
#include "tools/submit/commands.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "common/base/command_line.hpp"
#include "common/base/process.hpp"
#include "tools/submit/handover.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

namespace fs = std::filesystem;

constexpr int kDone = static_cast<int>(ExitCode::kDone);

void note(const std::string& text) {
  std::cerr << "submit: note: " + text + "\n";
}

Scheduler pick_scheduler(const Command& command) {
  if (command.scheduler) {
    return *command.scheduler;
  }
  const bool has_condor = find_in_path("condor_submit").has_value();
  const bool has_slurm = find_in_path("sbatch").has_value();
  if (!has_condor && !has_slurm && !command.dry_run) {
    refuse(
        "neither condor_submit nor sbatch is on PATH, expected a machine where jobs can be "
        "submitted, or --scheduler local");
  }
  return has_slurm && !has_condor ? Scheduler::kSlurm : Scheduler::kCondor;
}

void override_settings(const Command& command, Settings& settings) {
  Resources& resources = settings.resources;
  resources.nodes = command.nodes.value_or(resources.nodes);
  if (!command.gpus.empty()) {
    resources.gpus = static_cast<std::int64_t>(command.gpus.size());
  }
  resources.time_s = command.time_s ? command.time_s : resources.time_s;
  resources.account = command.account.empty() ? resources.account : command.account;
  resources.partition = command.partition.empty() ? resources.partition : command.partition;
  settings.arguments = command.arguments.value_or(settings.arguments);
}

/// What the settings say and this scheduler has no use for.
void note_unused(const Resources& resources, Scheduler scheduler, const std::vector<int>& gpus) {
  Choices unused;
  const auto check = [&unused](bool is_unused, const char* name) {
    if (is_unused) {
      unused.emplace_back(name);
    }
  };
  const bool is_local = scheduler == Scheduler::kLocal;
  check(!resources.partition.empty() && scheduler != Scheduler::kSlurm, "partition");
  check(!resources.constraint.empty() && scheduler != Scheduler::kSlurm, "constraint");
  check(resources.bid && scheduler != Scheduler::kCondor, "bid");
  check(resources.time_s && is_local, "time");
  check(!resources.account.empty() && is_local, "account");
  if (!unused.empty()) {
    note(fmt::format("{} in the settings is not used with --scheduler {}", join(unused),
                     scheduler_name(scheduler)));
  }
  int position = 0;
  const bool are_first =
      std::all_of(gpus.begin(), gpus.end(), [&](int gpu) { return gpu == position++; });
  if (!is_local && !are_first) {
    note(fmt::format("--gpus asks for {} GPUs of each node; which ones, the scheduler decides",
                     gpus.size()));
  }
}

/// Everything that would be written and run.
void print_job(const JobRequest& job, const std::string& out_dir, int attempt,
               const std::string& token) {
  const std::string folder = quote_path(job_folder(job, out_dir));
  if (job.scheduler == Scheduler::kLocal) {
    std::cout << fmt::format("# in folder {}, output in {} and {}\n{}\n", folder,
                             attempt_file(attempt, ".out"), attempt_file(attempt, ".err"),
                             shell_line(job.command));
    return;
  }
  const ClusterScheduler& scheduler = cluster_scheduler(job.scheduler);
  const std::string path = submission_path(job, out_dir);
  std::cout << fmt::format("# file {}\n{}# in folder {}\n{} {}\n", quote_path(path),
                           scheduler.file_text(job, job_folder(job, out_dir), attempt, token),
                           folder, shell_line(scheduler.submit_command), shell_line({path}));
}

/// A folder that no state knows of may hold another run's snapshot, which this one would resume.
void check_is_free(const JobRequest& request, const std::string& out_dir) {
  const std::string folder = job_folder(request, out_dir);
  if (fs::exists(fs::symlink_status(folder))) {
    refuse("{} is there but not in submissions, expected another out_dir or none of its folders",
           quote_path(folder));
  }
  if (request.scheduler != Scheduler::kLocal) {
    check_submission_file(request, out_dir);
  }
}

void submit_jobs(State& state, const std::vector<int>& indices) {
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
      throw Error(error.code(), fmt::format("{}; {} more jobs were not tried, `submit resubmit "
                                            "--failed` submits them",
                                            error.what(), left));
    }
    std::cout << fmt::format("job {} {}: ", job.request.index, job.request.name)
              << (left_out.empty()
                      ? fmt::format("submitted to {} as {}, output in {}",
                                    scheduler_name(job.request.scheduler), job.attempt.id,
                                    quote_path(job_folder(job.request, state.out_dir())))
                      : "left out, " + left_out)
              << '\n'
              << std::flush;
  }
}

/// Submits the jobs, those of a cluster first, and then runs the local ones.
int have_run(State& state, std::vector<int> indices) {
  const auto first_local = std::stable_partition(
      indices.begin(), indices.end(),
      [&state](int index) { return state.job(index).request.scheduler != Scheduler::kLocal; });
  submit_jobs(state, {indices.begin(), first_local});
  return run_local_jobs(state, {first_local, indices.end()});
}

/// The jobs that are asked for, at the next free numbers.
std::vector<JobRequest> plan_at_end(const Settings& settings, Scheduler scheduler,
                                    const Command& command, const State& state) {
  std::vector<JobRequest> requests = plan_jobs(settings, scheduler, command.sweep, command.gpus,
                                               static_cast<int>(state.jobs().size()));
  for (const JobRequest& request : requests) {
    check_is_free(request, state.out_dir());
    if (scheduler != Scheduler::kLocal) {
      // No job of a sweep is refused for its text after others were submitted.
      cluster_scheduler(scheduler).file_text(request, job_folder(request, state.out_dir()), 1,
                                             state.token(request.index, 1));
    }
  }
  return requests;
}

int submit_new(const Command& command) {
  Settings settings = read_settings(command.settings_file);
  override_settings(command, settings);
  const Scheduler scheduler = pick_scheduler(command);
  std::optional<State> state;
  std::vector<JobRequest> requests;
  do {
    state.emplace(settings.out_dir);
    try {
      requests = plan_at_end(settings, scheduler, command, *state);
    } catch (const UsageError&) {
      // Another submit may have taken these numbers, and made the folders, meanwhile.
      if (State(settings.out_dir).jobs().size() == state->jobs().size()) {
        throw;
      }
      requests.clear();
    }
  } while (requests.empty() || (!command.dry_run && !state->plan(requests)));
  note_unused(settings.resources, scheduler, command.gpus);
  std::vector<int> indices;
  for (const JobRequest& request : requests) {
    indices.push_back(request.index);
    if (command.dry_run) {
      // An out_dir gets its number, which tokens start with, when it is first written to.
      print_job(request, settings.out_dir, 1,
                state->jobs().empty() ? fmt::format("submit-NEW-{}-1", request.index)
                                      : state->token(request.index, 1));
    }
  }
  return command.dry_run ? kDone : have_run(*state, indices);
}

/// The out_dir that a command is about, with its jobs.
State find_state(const Command& command) {
  const std::string out_dir = command.settings_file.empty()
                                  ? absolute_path(fs::current_path().string(), command.out_dir)
                                  : read_settings(command.settings_file).out_dir;
  if (!State::exists(out_dir)) {
    refuse("no submissions in {}, expected --settings-file FILE or the out_dir of a submission",
           quote_path(out_dir));
  }
  return State(out_dir);
}

/// The jobs that were named, or those of all that `is_meant` picks.
/// @throws UsageError if one is not there
std::vector<int> pick(const State& state, const Command& command,
                      const std::function<bool(JobState)>& is_meant) {
  std::vector<int> indices;
  for (const int index : command.jobs) {
    indices.push_back(state.job(index).request.index);
  }
  for (const Job& job : state.jobs()) {
    if (command.jobs.empty() && is_meant(job.state())) {
      indices.push_back(job.request.index);
    }
  }
  return indices;
}

int resubmit(const Command& command) {
  State state = find_state(command);
  const std::vector<std::string> unreachable = refresh(state);
  const std::vector<int> indices = pick(state, command, needs_resubmission);
  for (const int index : indices) {
    if (const Job& job = state.job(index); !is_over(job.state())) {
      refuse("job {} is {}, expected one that is over; `submit cancel` ends it", index,
             state_name(job.state()));
    }
  }
  for (const std::string& why : unreachable) {
    note(why + "; jobs that may still run are left alone");
  }
  if (command.dry_run) {
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
  const int code = have_run(state, indices);
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

void print_table(const std::vector<const Job*>& jobs) {
  constexpr std::size_t kColumns = 7;
  std::vector<std::array<std::string, kColumns>> rows = {
      {"JOB", "NAME", "SCHEDULER", "ID", "STATE", "SUBMITTED", ""}};
  for (const Job* const job : jobs) {
    const Attempt& attempt = job->attempt;
    const Finding& finding = attempt.finding;
    rows.push_back(
        {std::to_string(job->request.index), job->request.name,
         std::string(scheduler_name(job->request.scheduler)), attempt.id.empty() ? "-" : attempt.id,
         std::string(state_name(finding.state)), format_date(attempt.submitted_unix_s),
         finding.exit_code.value_or(0) != 0 ? fmt::format("exit code {}", *finding.exit_code)
                                            : finding.reason});
  }
  std::array<std::size_t, kColumns> widths{};
  for (const auto& row : rows) {
    for (std::size_t column = 0; column < kColumns; ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < kColumns; ++column) {
      line += row[column] + std::string(widths[column] - row[column].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::cout << line << '\n';
  }
}

void print_json(const std::vector<const Job*>& jobs, const std::string& out_dir,
                const std::vector<std::string>& unreachable) {
  nlohmann::ordered_json document = {{"schema_version", 1},
                                     {"out_dir", out_dir},
                                     {"unreachable", unreachable},
                                     {"jobs", nlohmann::ordered_json::array()}};
  for (const Job* const job : jobs) {
    const JobRequest& request = job->request;
    const Attempt& attempt = job->attempt;
    nlohmann::ordered_json entry = {{"job", request.index},
                                    {"name", request.name},
                                    {"scheduler", scheduler_name(request.scheduler)},
                                    {"id", attempt.id},
                                    {"state", state_name(job->state())},
                                    {"exit_code", nullptr},
                                    {"reason", attempt.finding.reason},
                                    {"attempt", attempt.number},
                                    {"submitted_unix_s", attempt.submitted_unix_s},
                                    {"folder", job_folder(request, out_dir)},
                                    {"command", request.command}};
    if (attempt.id.empty()) {
      entry["id"] = nullptr;
    }
    if (attempt.finding.exit_code) {
      entry["exit_code"] = *attempt.finding.exit_code;
    }
    document["jobs"].push_back(std::move(entry));
  }
  std::cout << document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

/// `submit list`, and with the schedulers' answers `submit status`.
int show(const Command& command) {
  State state = find_state(command);
  std::vector<std::string> unreachable;
  if (command.action == Action::kStatus) {
    unreachable = refresh(state);
  }
  std::vector<const Job*> jobs;
  for (const int index : pick(state, command, [](JobState) { return true; })) {
    jobs.push_back(&state.job(index));
  }
  if (command.json) {
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
  std::vector<std::string> stems = {attempt_file(job.attempt.number, ".out"),
                                    attempt_file(job.attempt.number, ".err")};
  if (job.request.scheduler == Scheduler::kSlurm) {
    stems = {"job-" + id_alone(job.attempt.id) + ".out"};
  }
  std::vector<std::string> found;
  for (const std::string& stem : stems) {
    const auto before = static_cast<std::ptrdiff_t>(found.size());
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(job_folder(job.request, out_dir), error)) {
      // Of several nodes each has its own: job.out.0
      const std::string name = entry.path().filename().string();
      if (name == stem || name.starts_with(stem + ".")) {
        found.push_back(entry.path().string());
      }
    }
    std::sort(found.begin() + before, found.end());
  }
  return found;
}

/// The last lines of a file.
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

int logs(const Command& command) {
  const State state = find_state(command);
  if (command.jobs.empty()) {
    for (const Job& job : state.jobs()) {
      for (const std::string& path : output_files(job, state.out_dir())) {
        std::cout << quote_path(path) << '\n';
      }
    }
  }
  for (const int index : command.jobs) {
    const Job& job = state.job(index);
    const std::vector<std::string> files = output_files(job, state.out_dir());
    if (files.empty()) {
      throw Error(
          ExitCode::kTrainingFailed,
          fmt::format("job {} is {} and has no output yet in {}", index, state_name(job.state()),
                      quote_path(job_folder(job.request, state.out_dir()))));
    }
    for (const std::string& path : files) {
      std::cout << "==> " << quote_path(path) << " <==\n" << tail(path, command.lines);
    }
  }
  return kDone;
}

/// @return one line: why it still runs or waits; empty: it ends, or will not begin
std::string end_job(State& state, int index) {
  const Job& job = state.job(index);
  const Finding cancelled = {JobState::kCancelled};
  if (job.state() == JobState::kPlanned) {
    if (state.begin(index, cancelled)) {
      return "";
    }
    return fmt::format("it is {} by now, expected one that nobody submits",
                       state_name(state.read_again(index).state()));
  }
  if (job.attempt.id.empty()) {
    return fmt::format("it is {}, expected a known id; `submit status` looks for it",
                       state_name(job.state()));
  }
  if (job.request.scheduler != Scheduler::kLocal) {
    const ClusterScheduler& scheduler = cluster_scheduler(job.request.scheduler);
    const CommandResult result = run_command({scheduler.cancel_command, id_alone(job.attempt.id)});
    if (!result.ok()) {
      return result.failure;
    }
  }
  // The submit that runs a local job looks at its record, wherever that is.
  if (!is_over(state.read_again(index).state())) {
    state.update(index, cancelled);
  }
  return "";
}

int cancel(const Command& command) {
  State state = find_state(command);
  const auto can_end = [](JobState known) {
    return !is_over(known) || known == JobState::kPlanned;
  };
  int code = kDone;
  for (const int index : pick(state, command, can_end)) {
    const Job& job = state.job(index);
    const bool was_over = !can_end(job.state());
    const std::string failure = was_over ? "" : end_job(state, index);
    if (!failure.empty()) {
      std::cerr << fmt::format("submit: error: job {}: {}\n", index, failure);
      code = static_cast<int>(ExitCode::kTrainingFailed);
    } else if (was_over || job.state() != JobState::kCancelled) {
      std::cout << fmt::format("job {} is {} already\n", index, state_name(job.state()));
    } else {
      std::cout << fmt::format("job {} cancelled\n", index);
    }
  }
  return code;
}

}  // namespace

int run(int argc, const char* const* argv) {
  const Command command = parse_command_line(argc, argv);
  switch (command.action) {
    case Action::kList:
    case Action::kStatus:
      return show(command);
    case Action::kLogs:
      return logs(command);
    case Action::kCancel:
      return cancel(command);
    case Action::kResubmit:
      return resubmit(command);
    case Action::kSubmit:
      break;
  }
  return submit_new(command);
}

}  // namespace ddp::submit
