// tools/submit/submit_command.cpp - `submit` and `submit resubmit`: what hands jobs over.
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/command.hpp"
#include "tools/submit/commands.hpp"
#include "tools/submit/local_runner.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/state.hpp"
#include "tools/submit/submission.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"
#include "tools/submit/tracking.hpp"

namespace ddp::submit {
namespace {

namespace fs = std::filesystem;

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
  const auto check = [&](bool given, const char* name, bool used) {
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
  if (line.gpus && scheduler != Scheduler::kLocal) {
    for (std::size_t i = 0; i < line.gpus->size(); ++i) {
      if ((*line.gpus)[i] != static_cast<int>(i)) {
        note("--gpus asks for " + std::to_string(line.gpus->size()) +
             " GPUs of each node; which ones, the scheduler decides");
        return;
      }
    }
  }
}

void print_file(const std::string& path, const std::string& text) {
  std::cout << "# file " << quote_path(path) << '\n' << text;
}

/// Everything that would be written and run.
void print_job(const JobRequest& job, const std::string& out_dir, int attempt,
               const std::string& token) {
  const std::string folder = out_dir + "/" + job.folder;
  if (job.scheduler == Scheduler::kLocal) {
    const JobFiles files = job_files(job, attempt);
    std::cout << "# in folder " << quote_path(folder) << ", output in " << files.out << " and "
              << files.err << '\n'
              << shell_line(job.command) << '\n';
    return;
  }
  print_file(submission_path(job, out_dir), submission_text(job, out_dir, attempt, token));
  std::cout << "# in folder " << quote_path(folder) << '\n'
            << shell_line(submission_command(job, out_dir)) << '\n';
}

/// A folder that no state knows of may hold another run's snapshot, which this one would resume.
void check_is_free(const std::vector<JobRequest>& requests, const std::string& out_dir) {
  for (const JobRequest& request : requests) {
    const std::string folder = out_dir + "/" + request.folder;
    if (fs::exists(fs::symlink_status(folder))) {
      throw UsageError(
          quote_path(folder) +
          " is there but not in submissions.jsonl, expected another out_dir or none of "
          "its folders");
    }
    if (request.scheduler != Scheduler::kLocal) {
      check_submission_file(request, out_dir);
    }
  }
}

/// @return the exit code
int submit_jobs(StateFile& state, const std::vector<int>& indices) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    try {
      submit_job(state, indices[i]);
    } catch (const Error& error) {
      const std::size_t left = indices.size() - i - 1;
      if (left > 0) {
        throw Error(error.code(), std::string(error.what()) + "; " + std::to_string(left) +
                                      " more jobs were not tried, `submit resubmit --failed` "
                                      "submits them");
      }
      throw;
    }
    const Job& job = state.job(indices[i]);
    std::cout << "job " << job.request.index << ' ' << job.request.name << ": submitted to "
              << scheduler_name(job.request.scheduler) << " as " << job.id << ", output in "
              << quote_path(state.out_dir() + "/" + job.request.folder) << '\n'
              << std::flush;
  }
  return static_cast<int>(ExitCode::kDone);
}

int hand_over(const std::string& out_dir, const std::vector<JobRequest>& requests,
              std::optional<StateFile>& state) {
  std::vector<int> indices;
  for (const JobRequest& request : requests) {
    indices.push_back(request.index);
  }
  if (requests.empty()) {
    return static_cast<int>(ExitCode::kDone);
  }
  if (requests.front().scheduler == Scheduler::kLocal) {
    std::vector<Job> jobs;
    for (const int index : indices) {
      jobs.push_back(state->job(index));
    }
    state.reset();  // jobs run for hours, others may look meanwhile
    return run_local_jobs(out_dir, jobs);
  }
  return submit_jobs(*state, indices);
}

}  // namespace

int submit(const CommandLine& line) {
  Settings settings = read_settings(line.settings_file);
  override_settings(line, settings);
  PlanOptions options;
  options.scheduler = pick_scheduler(line);
  options.sweep = line.sweep;
  options.gpus = line.gpus.value_or(std::vector<int>());
  options.torchrun = find_torchrun();
  plan_jobs(settings, options);  // refuses before anything is written

  const std::string& out_dir = settings.out_dir;
  const auto plan_at = [&](std::size_t first) {
    options.first_index = static_cast<int>(first);
    std::vector<JobRequest> requests = plan_jobs(settings, options);
    check_is_free(requests, out_dir);
    return requests;
  };
  if (line.dry_run) {
    note_unused(settings.resources, options.scheduler, line);
    std::optional<StateFile> state;
    if (StateFile::exists(out_dir)) {
      state.emplace(out_dir, StateFile::Access::kRead);
    }
    for (const JobRequest& request : plan_at(state ? state->jobs().size() : 0)) {
      // An out_dir gets its number, which tokens start with, when it is first written to.
      print_job(request, out_dir, 1,
                state ? state->token(request.index, 1)
                      : "submit-NEW-" + std::to_string(request.index) + "-1");
    }
    return static_cast<int>(ExitCode::kDone);
  }
  std::optional<StateFile> state(std::in_place, out_dir, StateFile::Access::kWrite);
  const std::vector<JobRequest> requests = plan_at(state->jobs().size());
  // The files can be written: no job of a sweep is refused for its text after others were
  // submitted.
  for (const JobRequest& request : requests) {
    if (request.scheduler != Scheduler::kLocal) {
      submission_text(request, out_dir, 1, state->token(request.index, 1));
    }
  }
  note_unused(settings.resources, options.scheduler, line);
  state->plan(requests);
  return hand_over(out_dir, requests, state);
}

int resubmit(const CommandLine& line) {
  const std::string out_dir = find_out_dir(line);
  std::optional<StateFile> state(std::in_place, out_dir, StateFile::Access::kWrite);
  const std::vector<std::string> unreachable = refresh(*state);
  std::vector<JobRequest> requests;
  if (line.failed) {
    for (const Job& job : state->jobs()) {
      if (needs_resubmission(job.state)) {
        requests.push_back(job.request);
      }
    }
  }
  for (const int index : line.jobs) {
    const Job& job = state->job(index);
    if (!is_over(job.state)) {
      throw UsageError("job " + std::to_string(index) + " is " +
                       std::string(state_name(job.state)) +
                       ", expected one that is over; `submit cancel` ends it");
    }
    requests.push_back(job.request);
  }
  for (const std::string& why : unreachable) {
    note(why + "; jobs that may still run are left alone");
  }
  if (line.dry_run) {
    for (const JobRequest& request : requests) {
      const int attempt = state->job(request.index).attempt + 1;
      print_job(request, out_dir, attempt, state->token(request.index, attempt));
    }
    return static_cast<int>(ExitCode::kDone);
  }
  if (requests.empty()) {
    std::cout << "nothing to resubmit\n";
  }
  std::vector<JobRequest> local;
  std::vector<JobRequest> remote;
  for (const JobRequest& request : requests) {
    (request.scheduler == Scheduler::kLocal ? local : remote).push_back(request);
  }
  const int remote_code = hand_over(out_dir, remote, state);
  const int local_code = hand_over(out_dir, local, state);
  const int code = remote_code != 0 ? remote_code : local_code;
  return code == 0 && !unreachable.empty() ? static_cast<int>(ExitCode::kTransient) : code;
}

}  // namespace ddp::submit
