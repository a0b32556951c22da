// tools/submit/local_runner.cpp - the processes of local jobs: started, told to stop, waited for.
#include "tools/submit/local_runner.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <optional>
#include <system_error>

#include "common/base/process.hpp"
#include "tools/submit/handover.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(30);  // between the signal and SIGKILL
constexpr auto kLookPeriod = std::chrono::milliseconds(500);  // whether it was cancelled
constexpr double kSignalPoll_s = 0.2;

struct Ending {
  Finding finding;
  bool interrupted = false;  ///< by the user, who wants no further job either
  std::string left_out;  ///< why it did not run; empty: it did
};

int open_output(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw Error(ExitCode::kTrainingFailed, fmt::format("cannot write {}: {}", quote_path(path),
                                                       std::generic_category().message(errno)));
  }
  return fd;
}

/// @throws CannotRun
pid_t start_job(const Job& job, const std::string& folder, const BlockedSignals& signals) {
  const FileDescriptor out(open_output(folder + "/" + attempt_file(job.attempt.number, ".out")));
  const FileDescriptor err(open_output(folder + "/" + attempt_file(job.attempt.number, ".err")));
  StartOptions options;
  options.cwd = folder;
  options.out_fd = out.get();
  options.err_fd = err.get();
  options.parent_death_signal = SIGTERM;
  options.signal_mask = signals.original();
  return start_process(job.request.command, options);
}

/// Ends the process as the user wishes, or the record of the job, and what it left behind.
/// @throws std::system_error if nobody can know how it ended
Ending wait_for(pid_t pid, const BlockedSignals& signals, State& state, int index) {
  Ending ending;
  std::optional<Clock::time_point> kill_at;
  const auto stop = [&](int signal) {
    kill(-pid, signal);
    kill_at = kill_at.value_or(Clock::now() + kGrace);
  };
  auto look_at = Clock::now() + kLookPeriod;
  std::optional<ProcessEnd> end;
  while (!(end = poll_process(pid))) {
    const int signal = signals.wait(kSignalPoll_s).si_signo;
    if (signal != 0 && signal != SIGCHLD) {
      ending.interrupted = true;
      stop(signal);
    }
    if (Clock::now() > look_at) {
      look_at = Clock::now() + kLookPeriod;
      if (!kill_at && state.read_again(index).state() == JobState::kCancelled) {
        stop(SIGTERM);
      }
    }
    if (kill_at && Clock::now() > *kill_at) {
      kill(-pid, SIGKILL);
    }
  }
  kill(-pid, SIGKILL);  // what it left behind
  if (end->signal != 0) {
    ending.finding = {JobState::kFailed, std::nullopt,
                      fmt::format("ended by signal {}", end->signal)};
  } else {
    ending.finding = {end->exit_code == 0 ? JobState::kDone : JobState::kFailed, end->exit_code};
  }
  return ending;
}

Ending run_job(State& state, int index, const BlockedSignals& signals) {
  std::optional<Presence> presence;
  Ending ending;
  ending.left_out = take(state, index, {JobState::kRunning}, std::to_string(getpid()), presence);
  if (!ending.left_out.empty()) {
    return ending;
  }
  const Job job = state.job(index);
  const std::string folder = state.out_dir() + "/" + job.request.folder;
  make_folders(folder);
  for (int restarts = 0; restarts < kMostRestarts; ++restarts) {
    try {
      ending = wait_for(start_job(job, folder, signals), signals, state, index);
    } catch (const CannotRun& error) {
      ending.finding = {JobState::kFailed, std::nullopt, error.what()};
    }
    const bool is_cancelled = state.read_again(index).state() == JobState::kCancelled;
    if (is_cancelled) {
      ending.finding.state = JobState::kCancelled;
    }
    if (is_cancelled || ending.interrupted || ending.finding.exit_code != kAgain) {
      break;
    }
  }
  state.update(index, ending.finding);
  return ending;
}

std::string describe(const Finding& finding) {
  return finding.state == JobState::kDone ? "done"
         : finding.exit_code
             ? fmt::format("{}, exit code {}", state_name(finding.state), *finding.exit_code)
             : fmt::format("{}, {}", state_name(finding.state), finding.reason);
}

}  // namespace

int run_local_jobs(State& state, const std::vector<int>& indices) {
  const BlockedSignals signals({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const JobRequest request = state.job(indices[i]).request;
    const Clock::time_point start = Clock::now();
    const Ending ending = run_job(state, request.index, signals);
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    std::cout << fmt::format("job {} ({} of {}) {}: ", request.index, i + 1, indices.size(),
                             request.name)
              << (ending.left_out.empty()
                      ? fmt::format("{}, {:.1f} s, output in {}", describe(ending.finding),
                                    elapsed.count(),
                                    quote_path(state.out_dir() + "/" + request.folder))
                      : "left out, " + ending.left_out)
              << "\n"
              << std::flush;
    if (ending.interrupted) {
      return static_cast<int>(ending.finding.exit_code == kAgain ? ExitCode::kRunAgain
                                                                 : ExitCode::kTrainingFailed);
    }
  }
  const bool all_done = std::all_of(indices.begin(), indices.end(), [&state](int index) {
    return state.read_again(index).state() == JobState::kDone;
  });
  return static_cast<int>(all_done ? ExitCode::kDone : ExitCode::kTrainingFailed);
}

}  // namespace ddp::submit
