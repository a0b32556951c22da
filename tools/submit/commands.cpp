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
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
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

/// @param name of the option that has it
std::string path_given(const std::string& name, const std::string& path) {
  check_path(name, path);
  std::string absolute = absolute_path(fs::current_path().string(), path);
  check_path(name, absolute);
  return absolute;
}

void override_settings(const Command& command, Settings& settings) {
  if (!command.program.empty()) {
    settings.script_path = path_given("--program", command.program);
  }
  if (!command.out_dir.empty()) {
    settings.out_dir = path_given("--out-dir", command.out_dir);
  }
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

/// Settings that were written for HTCondor are not refused where nobody has asked for Slurm.
Settings without_others_keys(Settings settings, const Command& command, Scheduler scheduler) {
  Resources& resources = settings.resources;
  if (!command.scheduler && scheduler == Scheduler::kSlurm) {
    resources.transfer_files.clear();
    if (resources.constraint.empty()) {
      resources.gpu_memory_mb.reset();
    }
  }
  return settings;
}

/// What the settings say and this scheduler has no use for.
void note_unused(const Resources& resources, Scheduler scheduler, const Command& command) {
  const std::vector<int>& gpus = command.gpus;
  Choices unused;
  const auto check = [&unused](bool is_unused, const char* name) {
    if (is_unused) {
      unused.emplace_back(name);
    }
  };
  const bool is_local = scheduler == Scheduler::kLocal;
  check(!resources.partition.empty() && scheduler != Scheduler::kSlurm, "partition");
  check(!resources.constraint.empty() && scheduler != Scheduler::kSlurm, "constraint");
  check(resources.gpu_memory_mb && scheduler != Scheduler::kCondor && resources.constraint.empty(),
        "memory_gpus");
  check(!resources.transfer_files.empty() && scheduler != Scheduler::kCondor, "transfer_files");
  check(resources.bid && scheduler != Scheduler::kCondor, "bid");
  check(resources.time_s && is_local, "time");
  check(!resources.account.empty() && is_local, "account");
  if (!unused.empty()) {
    note(fmt::format("{} in the settings is not used with --scheduler {}", join(unused),
                     scheduler_name(scheduler)));
  }
  if (command.sweep_limit && is_local) {
    note("--sweep-limit is not used with --scheduler local, which runs one job at a time");
  }
  if (!is_local && resources.cpus.value_or(resources.gpus) < resources.gpus) {
    note(
        fmt::format("WARNING: num_cpus: got {} for {} GPUs of each node, expected at least one for "
                    "each GPU (better 4): the GPUs will wait for them",
                    *resources.cpus, resources.gpus));
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
void print_local_job(const JobRequest& job, const std::string& out_dir, int attempt) {
  std::cout << fmt::format("# in folder {}, output in {} and {}\n{}\n",
                           quote_path(job_folder(job, out_dir)), attempt_file(attempt, ".out"),
                           attempt_file(attempt, ".err"), shell_line(job.command));
}

void print_submission(const SubmissionText& text, bool waits) {
  std::cout << fmt::format("# file {}\n{}", quote_path(text.path), text.file);
  if (!text.points.empty()) {
    std::cout << fmt::format("# file {}\n{}", quote_path(text.folder + "/" + kPointsFile),
                             text.points);
  }
  std::cout << fmt::format("# in folder {}{}\n{} {}\n", quote_path(text.folder),
                           waits ? ", and only when the one before is over" : "",
                           shell_line(text.command), shell_line({text.path}));
}

void print_plan(const State& state, const std::vector<int>& indices) {
  std::vector<int> of_clusters;
  for (const int index : indices) {
    const Job& job = state.job(index);
    if (job.request.scheduler == Scheduler::kLocal) {
      print_local_job(job.request, state.out_dir(), job.attempt.number + 1);
    } else {
      of_clusters.push_back(index);
    }
  }
  std::map<int, int> submissions;  // of each plan
  for (const std::vector<int>& together : group(state, of_clusters)) {
    std::vector<const JobRequest*> jobs;
    for (const int index : together) {
      jobs.push_back(&state.job(index).request);
    }
    const Job& first = state.job(together.front());
    const int plan = state.plan_of(together.front());
    const int before = submissions[plan]++;
    const int batch = state.next_batch(plan) + before;
    print_submission(submission_text(jobs, state.out_dir(), plan, batch, first.attempt.number + 1,
                                     state.token(plan, batch)),
                     before > 0 && first.request.limit > 0);
  }
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

void print_submitted(const State& state, const std::vector<int>& indices, const LeftOut& left_out) {
  for (const int index : indices) {
    const Job& job = state.job(index);
    const auto why = left_out.find(index);
    std::cout << fmt::format("job {} {}: ", index, job.request.name)
              << (why == left_out.end()
                      ? fmt::format("submitted to {} as {}, output in {}",
                                    scheduler_name(job.request.scheduler), job.attempt.id,
                                    quote_path(job_folder(job.request, state.out_dir())))
                      : "left out, " + why->second)
              << '\n';
  }
  std::cout << std::flush;
}

void submit_jobs(State& state, const std::vector<int>& indices) {
  const Known known = attempts_of(state, indices);
  std::size_t left = indices.size();
  std::map<int, std::string> before;  // of each plan with a limit: its last submission
  for (const std::vector<int>& together : group(state, indices)) {
    left -= together.size();
    const int index = together.front();
    const bool is_limited = state.job(index).request.limit > 0;
    LeftOut left_out;
    try {
      left_out =
          submit_together(state, together, known, is_limited ? before[state.plan_of(index)] : "");
    } catch (const Error& error) {
      if (left == 0) {
        throw;
      }
      throw Error(error.code(), fmt::format("{}; {} more jobs were not tried, `submit resubmit "
                                            "--failed` submits them",
                                            error.what(), left));
    }
    print_submitted(state, together, left_out);
    for (const int one : together) {
      if (!left_out.contains(one)) {
        before[state.plan_of(one)] = parse_job_id(state.job(one).attempt.id).submission;
      }
    }
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
  std::vector<const JobRequest*> jobs;
  for (JobRequest& request : requests) {
    request.limit = command.sweep_limit.value_or(0);
    check_is_free(request, state.out_dir());
    jobs.push_back(&request);
  }
  if (command.sweep_limit && scheduler == Scheduler::kCondor && requests.front().several) {
    refuse(
        "--sweep-limit {} with nodes {}: HTCondor has no limit for jobs of several nodes, expected "
        "none",
        *command.sweep_limit, settings.resources.nodes);
  }
  if (scheduler != Scheduler::kLocal) {
    // No job of a sweep is refused for its text after others were submitted.
    submission_text(jobs, state.out_dir(), requests.front().index, 1, 1, "");
  }
  return requests;
}

int submit_new(const Command& command) {
  Settings written =
      command.settings_file.empty() ? Settings{} : read_settings(command.settings_file);
  override_settings(command, written);
  const Scheduler scheduler = pick_scheduler(command);
  const Settings settings = without_others_keys(written, command, scheduler);
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
  } while (requests.empty() || !state->plan(requests, command.dry_run));
  note_unused(written.resources, scheduler, command);
  std::vector<int> indices;
  for (const JobRequest& request : requests) {
    indices.push_back(request.index);
  }
  if (command.dry_run) {
    print_plan(*state, indices);
    return kDone;
  }
  return have_run(*state, indices);
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

std::vector<int> all_jobs(const State& state) {
  std::vector<int> indices(state.jobs().size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

int resubmit(const Command& command) {
  State state = find_state(command);
  const std::vector<std::string> unreachable = refresh(state, all_jobs(state));
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
    print_plan(state, indices);
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
    unreachable = refresh(state, all_jobs(state));
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
    stems = {"job-" + split(job.attempt.id, ';')[0] + ".out"};
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

/// Has jobs whose turn has not come never begin, unless another submit begins them first.
void end_planned(State& state, std::vector<int> indices) {
  const auto has_begun = [&state](int index) {
    return state.job(index).state() != JobState::kPlanned;
  };
  std::map<int, std::vector<int>> plans;
  for (const int index : indices) {
    plans[state.plan_of(index)].push_back(index);
  }
  for (auto& [plan, jobs] : plans) {
    while (!jobs.empty() && !state.begin(jobs, {JobState::kCancelled})) {
      state.read_again(jobs.front());
      std::erase_if(jobs, has_begun);
    }
  }
}

bool can_end(JobState known) {
  return !is_over(known) || known == JobState::kPlanned;
}

/// Ends the jobs that are not over.
/// @return why not, of those where the scheduler said so
std::map<int, std::string> end_jobs(State& state, const std::vector<int>& indices) {
  std::vector<int> planned;
  std::vector<int> in_clusters;
  for (const int index : indices) {
    const Job& job = state.job(index);
    const bool is_local = job.request.scheduler == Scheduler::kLocal;
    if (job.state() == JobState::kPlanned) {
      planned.push_back(index);
    } else if (!is_local && !job.attempt.id.empty()) {
      in_clusters.push_back(index);
    } else if (is_local && !is_over(state.read_again(index).state())) {
      // The submit that runs a local job looks at its record, wherever that is.
      state.update(index, {JobState::kCancelled});
    }
  }
  end_planned(state, planned);
  std::map<int, std::string> failures = cancel_in_clusters(state, in_clusters);
  if (!failures.empty()) {
    refresh(state, in_clusters);  // some may have ended all the same
  }
  return failures;
}

int cancel(const Command& command) {
  State state = find_state(command);
  const std::vector<int> indices = pick(state, command, can_end);
  // Some may be over by now, and what they have become stays.
  if (const std::vector<std::string> unreachable = refresh(state, indices); !unreachable.empty()) {
    throw TransientError(unreachable.front() +
                         "; which jobs still run is not known, none was cancelled");
  }
  std::vector<int> alive;
  std::copy_if(indices.begin(), indices.end(), std::back_inserter(alive),
               [&state](int index) { return can_end(state.job(index).state()); });
  std::map<int, std::string> failures = end_jobs(state, alive);
  const std::set<int> were_alive(alive.begin(), alive.end());
  int code = kDone;
  for (const int index : indices) {
    const JobState known = state.job(index).state();
    if (were_alive.contains(index) && known == JobState::kCancelled) {
      std::cout << fmt::format("job {} cancelled\n", index);
    } else if (is_over(known)) {
      std::cout << fmt::format("job {} is {} already\n", index, state_name(known));
    } else {
      const std::string why = fmt::format(
          "it is {}, expected a known id; `submit status` looks for it", state_name(known));
      std::cerr << fmt::format("submit: error: job {}: {}\n", index,
                               failures[index].empty() ? why : failures[index]);
      code = static_cast<int>(ExitCode::kTrainingFailed);
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
