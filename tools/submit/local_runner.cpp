// tools/submit/local_runner.cpp - the processes of local jobs: started, told to stop, waited for.
#include "tools/submit/local_runner.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/files.hpp"
#include "tools/submit/handover.hpp"
#include "tools/submit/process.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(30);  // between the signal and SIGKILL
constexpr auto kLookPeriod = std::chrono::milliseconds(500);  // whether it was cancelled

/// Nothing is done in a handler: the signals stay blocked here and are waited for.
class SignalWait {
 public:
  SignalWait() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
      sigaddset(&set_, signal);
    }
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~SignalWait() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalWait(const SignalWait&) = delete;
  SignalWait& operator=(const SignalWait&) = delete;

  /// @return the signal, or 0 after a while without one
  int wait() const {
    const timespec timeout = {0, 200'000'000};
    return std::max(sigtimedwait(&set_, nullptr, &timeout), 0);
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

struct Ending {
  Finding finding;
  bool interrupted = false;  ///< by the user, who wants no further job either
  std::string left_out;  ///< why it did not run; empty: it did
};

pid_t start_job(const Job& job, const std::string& folder, const SignalWait& signals) {
  const JobFiles files = job_files(job.request, job.attempt.number);
  ProcessOptions options;
  options.cwd = folder;
  options.own_group = true;
  options.signal_mask = signals.before();
  const auto open_output = [&folder](const std::string& name) {
    const std::string path = folder + "/" + name;
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
      throw Error(ExitCode::kTrainingFailed, "cannot write " + quote_path(path) + ": " +
                                                 std::generic_category().message(errno));
    }
    return fd;
  };
  options.out = open_output(files.out);
  options.err = open_output(files.err);
  const pid_t pid = start_process(job.request.command, options);
  close(options.out);
  close(options.err);
  return pid;
}

/// Ends the process as the user wishes, or the record of the job, and what it left behind.
/// @throws Error if nobody can know how it ended
Ending wait_for(pid_t pid, const SignalWait& signals, State& state, int index) {
  Ending ending;
  std::optional<Clock::time_point> kill_at;
  const auto stop = [&](int signal) {
    kill(-pid, signal);
    kill_at = kill_at.value_or(Clock::now() + kGrace);
  };
  int status = 0;
  auto look_at = Clock::now() + kLookPeriod;
  for (pid_t ended = 0; (ended = waitpid(pid, &status, WNOHANG)) != pid;) {
    if (ended < 0 && errno != EINTR) {
      throw Error(ExitCode::kTrainingFailed, "cannot wait for process " + std::to_string(pid) +
                                                 ": " + std::generic_category().message(errno));
    }
    if (const int signal = signals.wait(); signal != 0 && signal != SIGCHLD) {
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
  if (WIFEXITED(status)) {
    const int code = WEXITSTATUS(status);
    ending.finding = {code == 0 ? JobState::kDone : JobState::kFailed, code, ""};
  } else {
    ending.finding = {JobState::kFailed, std::nullopt,
                      "ended by signal " + std::to_string(WTERMSIG(status))};
  }
  return ending;
}

Ending run_job(State& state, int index, const SignalWait& signals) {
  std::optional<Presence> presence;
  Ending ending;
  ending.left_out = take(state, index, {JobState::kRunning, std::nullopt, ""},
                         std::to_string(getpid()), presence);
  if (!ending.left_out.empty()) {
    return ending;
  }
  const Job job = state.job(index);
  const std::string folder = state.out_dir() + "/" + job.request.folder;
  make_folders(folder);
  for (int restarts = 0; restarts < kMostRestarts; ++restarts) {
    ending = wait_for(start_job(job, folder, signals), signals, state, index);
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
  if (finding.state == JobState::kDone) {
    return "done";
  }
  return std::string(state_name(finding.state)) + ", " +
         (finding.exit_code ? "exit code " + std::to_string(*finding.exit_code) : finding.reason);
}

}  // namespace

int run_local_jobs(State& state, const std::vector<int>& indices) {
  const SignalWait signals;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const JobRequest request = state.job(indices[i]).request;
    const Clock::time_point start = Clock::now();
    const Ending ending = run_job(state, request.index, signals);
    char time[32];
    std::snprintf(time, sizeof(time), "%.1f s",
                  std::chrono::duration<double>(Clock::now() - start).count());
    std::cout << "job " << request.index << " (" << i + 1 << " of " << indices.size() << ") "
              << request.name << ": "
              << (ending.left_out.empty()
                      ? describe(ending.finding) + ", " + time + ", output in " +
                            quote_path(state.out_dir() + "/" + request.folder)
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
