#include "tools/submit/local_runner.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>

#include "common/base/exit_codes.hpp"
#include "tools/submit/local_process.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/state.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRestarts = 1000;

/// An open file that others can see to be in use.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)),
        is_ours_(fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    if (const int error = errno; !is_ours_ && (fd_ < 0 || error != EWOULDBLOCK)) {
      close(fd_);
      throw UsageError("cannot lock " + quote_path(path) + ": " +
                       std::generic_category().message(error) +
                       ", expected an out_dir that can be written, with locks");
    }
  }
  ~LockedFile() { close(fd_); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  /// False if another process has it.
  bool is_ours() const { return is_ours_; }

 private:
  int fd_;
  bool is_ours_;
};

/// Note [Handed over]: between the plan and a job's turn hours may pass, in which others cancel the
/// job or submit it. So it runs only if it is, under the lock, as it was when it was handed over.
/// @return why it is not to be run; empty: it is recorded as running, and `running` is locked
std::string take_over(const std::string& out_dir, Job& job, std::optional<LockedFile>& running) {
  const int index = job.request.index;
  StateFile state(out_dir, StateFile::Access::kWrite);
  const Job& now = state.job(index);
  if (now.state != job.state || now.attempt != job.attempt) {
    return "it is " + std::string(state_name(now.state)) + " by now";
  }
  std::filesystem::create_directories(out_dir + "/" + now.request.folder);
  running.emplace(running_lock_path(now.request, out_dir));
  if (!running->is_ours()) {
    return "its last start has not ended yet";
  }
  state.submitting(index, state.token(index, now.attempt + 1));
  state.submitted(index, std::to_string(getpid()));
  state.update(index, JobState::kRunning, std::nullopt, "");
  job = state.job(index);
  return "";
}

struct Outcome {
  ProcessEnd end;
  std::string left_out;  ///< why it did not run; empty: it did
};

Outcome run_job(const std::string& out_dir, Job job, const SignalWait& signals) {
  std::optional<LockedFile> running;
  const std::string left_out = take_over(out_dir, job, running);
  if (!left_out.empty()) {
    return {{}, left_out};
  }
  ProcessEnd ending;
  for (int restarts = 0; restarts < kMostRestarts; ++restarts) {
    ending = wait_for(start_process(job, out_dir + "/" + job.request.folder, signals), signals);
    if (ending.terminated || ending.interrupted ||
        ending.finding.exit_code != static_cast<int>(ExitCode::kRunAgain)) {
      break;
    }
  }
  const int index = job.request.index;
  StateFile state(out_dir, StateFile::Access::kWrite);
  if (state.job(index).state == JobState::kCancelled) {
    // The SIGTERM was for this job alone, and may have come just after its end.
    if (!ending.terminated) {
      SignalWait::forget_sigterm();
    }
    ending.finding.state = JobState::kCancelled;
  } else {
    ending.interrupted = ending.interrupted || ending.terminated;
  }
  state.update(index, ending.finding.state, ending.finding.exit_code, ending.finding.reason);
  return {ending, ""};
}

std::string describe(const Finding& finding) {
  if (finding.state == JobState::kDone) {
    return "done";
  }
  return std::string(state_name(finding.state)) + ", " +
         (finding.exit_code ? "exit code " + std::to_string(*finding.exit_code) : finding.reason);
}

}  // namespace

int run_local_jobs(const std::string& out_dir, const std::vector<Job>& jobs) {
  const SignalWait signals;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const JobRequest& request = jobs[i].request;
    const Clock::time_point start = Clock::now();
    const auto [ending, left_out] = run_job(out_dir, jobs[i], signals);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::cout << "job " << request.index << " (" << i + 1 << " of " << jobs.size() << ") "
              << request.name << ": ";
    if (!left_out.empty()) {
      std::cout << "left out, " << left_out << "\n" << std::flush;
      continue;
    }
    char time[32];
    std::snprintf(time, sizeof(time), "%.1f s", seconds);
    std::cout << describe(ending.finding) << ", " << time << ", output in "
              << quote_path(out_dir + "/" + request.folder) << "\n"
              << std::flush;
    if (ending.interrupted) {
      return ending.finding.exit_code == static_cast<int>(ExitCode::kRunAgain)
                 ? static_cast<int>(ExitCode::kRunAgain)
                 : static_cast<int>(ExitCode::kTrainingFailed);
    }
  }
  const StateFile state(out_dir, StateFile::Access::kRead);
  const bool all_done = std::all_of(jobs.begin(), jobs.end(), [&state](const Job& job) {
    return state.job(job.request.index).state == JobState::kDone;
  });
  return static_cast<int>(all_done ? ExitCode::kDone : ExitCode::kTrainingFailed);
}

}  // namespace ddp::submit
