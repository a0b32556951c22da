// tools/submit/track_commands.cpp - `submit list`, `status`, `logs` and `cancel`.
#include <fstream>
#include <iostream>
#include <iterator>

#include "common/base/exit_codes.hpp"
#include "tools/submit/command.hpp"
#include "tools/submit/commands.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/state.hpp"
#include "tools/submit/text.hpp"
#include "tools/submit/tracking.hpp"

namespace ddp::submit {
namespace {

/// The last lines of a file, from its last MiB at most.
std::string tail(const std::string& path, int lines) {
  constexpr std::streamoff kMostBytes = std::streamoff{1} << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kMostBytes));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::size_t start = text.size();
  for (int i = 0; i < lines && start > 0; ++i) {
    const std::size_t newline = start < 2 ? std::string::npos : text.rfind('\n', start - 2);
    start = newline == std::string::npos ? 0 : newline + 1;
  }
  return text.substr(start);
}

std::vector<std::string> cancel_command(const Job& job) {
  return job.request.scheduler == Scheduler::kSlurm
             ? std::vector<std::string>{"scancel", job.id.substr(0, job.id.find(';'))}
             : std::vector<std::string>{"condor_rm", job.id};
}

/// @return one line: why it still runs or waits; empty: it is told to end
std::string end_job(const Job& job, const std::string& out_dir) {
  if (job.state == JobState::kPlanned) {
    return "";
  }
  if (job.id.empty()) {
    return "it is " + std::string(state_name(job.state)) +
           ", expected a known id; `submit status` looks for it";
  }
  return job.request.scheduler == Scheduler::kLocal ? stop_local(job, out_dir)
                                                    : run_command(cancel_command(job)).failure;
}

/// @return whether it is cancelled now
bool cancel_job(StateFile& state, int index) {
  const Job& job = state.job(index);
  const std::string name = "job " + std::to_string(index);
  if (is_over(job.state) && job.state != JobState::kPlanned) {
    std::cout << name << " is " << state_name(job.state) << " already\n";
    return true;
  }
  if (const std::string failure = end_job(job, state.out_dir()); !failure.empty()) {
    std::cerr << "submit: error: " + name + ": " + failure + "\n";
    return false;
  }
  state.update(index, JobState::kCancelled, std::nullopt, "");
  std::cout << name << " cancelled\n";
  return true;
}

}  // namespace

int list(const CommandLine& line) {
  const StateFile state(find_out_dir(line), StateFile::Access::kRead);
  print_jobs(state, line.jobs, line.json, {});
  return static_cast<int>(ExitCode::kDone);
}

int status(const CommandLine& line) {
  StateFile state(find_out_dir(line), StateFile::Access::kWrite);
  const std::vector<std::string> unreachable = refresh(state);
  print_jobs(state, line.jobs, line.json, unreachable);
  for (const std::string& why : unreachable) {
    std::cerr << "submit: note: " + why + "; its jobs are shown as they were last seen\n";
  }
  return static_cast<int>(unreachable.empty() ? ExitCode::kDone : ExitCode::kTransient);
}

int logs(const CommandLine& line) {
  const StateFile state(find_out_dir(line), StateFile::Access::kRead);
  if (line.jobs.empty()) {
    for (const Job& job : state.jobs()) {
      for (const std::string& path : output_files(job, state.out_dir())) {
        std::cout << quote_path(path) << '\n';
      }
    }
    return static_cast<int>(ExitCode::kDone);
  }
  for (const int index : line.jobs) {
    const Job& job = state.job(index);
    const std::vector<std::string> files = output_files(job, state.out_dir());
    if (files.empty()) {
      throw Error(ExitCode::kTrainingFailed,
                  "job " + std::to_string(index) + " is " + std::string(state_name(job.state)) +
                      " and has no output yet in " +
                      quote_path(state.out_dir() + "/" + job.request.folder));
    }
    for (const std::string& path : files) {
      std::cout << "==> " << quote_path(path) << " <==\n" << tail(path, line.lines);
    }
  }
  return static_cast<int>(ExitCode::kDone);
}

int cancel(const CommandLine& line) {
  StateFile state(find_out_dir(line), StateFile::Access::kWrite);
  std::vector<int> indices = line.jobs;
  for (const Job& job : state.jobs()) {
    if (line.all && (!is_over(job.state) || job.state == JobState::kPlanned)) {
      indices.push_back(job.request.index);
    }
  }
  for (const int index : indices) {
    static_cast<void>(state.job(index));  // all are there, or none is cancelled
  }
  bool all_cancelled = true;
  for (const int index : indices) {
    all_cancelled = cancel_job(state, index) && all_cancelled;
  }
  return static_cast<int>(all_cancelled ? ExitCode::kDone : ExitCode::kTrainingFailed);
}

}  // namespace ddp::submit
