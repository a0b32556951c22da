#include "tools/submit/local_runner.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <system_error>

#include "common/exit_codes.hpp"
#include "tools/submit/scheduler.hpp"
#include "tools/submit/state.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostRestarts = 1000;
constexpr auto kGrace = std::chrono::seconds(30);  // between the signal and SIGKILL

/// An open file that others can see to be in use.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (fd_ >= 0) {
        close(fd_);
      }
      throw UsageError("cannot lock " + quote_path(path) + ": " +
                       std::generic_category().message(error) +
                       ", expected a job that does not run already");
    }
  }
  ~LockedFile() { close(fd_); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

 private:
  int fd_;
};

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
    const int signal = sigtimedwait(&set_, nullptr, &timeout);
    return signal > 0 ? signal : 0;
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

struct Ending {
  Finding finding;
  bool interrupted = false;
};

int open_output(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot write " + quote_path(path) + ": " + std::generic_category().message(errno));
  }
  return fd;
}

pid_t start(const Job& job, const std::string& folder, const SignalWait& signals) {
  std::vector<std::string> words = job.request.command;
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  const JobFiles files = job_files(job.request, job.attempt);
  const int out = open_output(folder + "/" + files.out);
  const int err = open_output(folder + "/" + files.err);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls from here to exec. A group of its own: Ctrl-C comes here, and is
    // handed on once.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(input, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    if (getppid() == parent && chdir(folder.c_str()) == 0) {
      execv(argv[0], argv.data());
    }
    const char* const reason = std::strerror(errno);
    for (const char* const part :
         {"cannot run ", static_cast<const char*>(argv[0]), ": ", reason, "\n"}) {
      if (write(STDERR_FILENO, part, std::strlen(part)) < 0) {
        break;
      }
    }
    _exit(127);
  }
  const int error = errno;
  close(out);
  close(err);
  if (pid < 0) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot start a process: " + std::generic_category().message(error));
  }
  setpgid(pid, pid);
  return pid;
}

Ending wait_for(pid_t pid, const SignalWait& signals) {
  Ending ending;
  int status = 0;
  std::optional<Clock::time_point> kill_at;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    const int signal = signals.wait();
    if (signal != 0 && signal != SIGCHLD) {
      kill(-pid, signal);
      ending.interrupted = true;
      kill_at = kill_at.value_or(Clock::now() + kGrace);
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

Ending run_job(const std::string& out_dir, int index, const SignalWait& signals) {
  std::optional<Job> job;
  std::optional<LockedFile> running;
  {
    StateFile state(out_dir, StateFile::Access::kWrite);
    const JobRequest& request = state.job(index).request;
    const std::string folder = out_dir + "/" + request.folder;
    std::filesystem::create_directories(folder);
    running.emplace(running_lock_path(request, out_dir));
    state.submitting(index, state.token(index, state.job(index).attempt + 1));
    state.submitted(index, std::to_string(getpid()));
    state.update(index, JobState::kRunning, std::nullopt, "");
    job = state.job(index);
  }
  Ending ending;
  for (int restarts = 0; restarts < kMostRestarts; ++restarts) {
    ending = wait_for(start(*job, out_dir + "/" + job->request.folder, signals), signals);
    if (ending.interrupted || ending.finding.exit_code != static_cast<int>(ExitCode::kRunAgain)) {
      break;
    }
  }
  StateFile state(out_dir, StateFile::Access::kWrite);
  state.update(index, ending.finding.state, ending.finding.exit_code, ending.finding.reason);
  return ending;
}

std::string describe(const Finding& finding) {
  if (finding.exit_code.value_or(1) == 0) {
    return "done";
  }
  return "failed, " +
         (finding.exit_code ? "exit code " + std::to_string(*finding.exit_code) : finding.reason);
}

}  // namespace

int run_local_jobs(const std::string& out_dir, const std::vector<int>& indices) {
  const SignalWait signals;
  int code = static_cast<int>(ExitCode::kDone);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Clock::time_point start = Clock::now();
    const Ending ending = run_job(out_dir, indices[i], signals);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    StateFile state(out_dir, StateFile::Access::kRead);
    const Job& job = state.job(indices[i]);
    char time[32];
    std::snprintf(time, sizeof(time), "%.1f s", seconds);
    std::cout << "job " << indices[i] << " (" << i + 1 << " of " << indices.size() << ") "
              << job.request.name << ": " << describe(ending.finding) << ", " << time
              << ", output in " << quote_path(out_dir + "/" + job.request.folder) << "\n"
              << std::flush;
    if (ending.finding.state != JobState::kDone) {
      code = static_cast<int>(ExitCode::kTrainingFailed);
    }
    if (ending.interrupted) {
      return ending.finding.exit_code == static_cast<int>(ExitCode::kRunAgain)
                 ? static_cast<int>(ExitCode::kRunAgain)
                 : static_cast<int>(ExitCode::kTrainingFailed);
    }
  }
  return code;
}

}  // namespace ddp::submit
