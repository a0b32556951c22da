#include "tools/submit/local_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tools/submit/submission_file.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kGrace = std::chrono::seconds(30);  // between the signal and SIGKILL

int open_output(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot write " + quote_path(path) + ": " + std::generic_category().message(errno));
  }
  return fd;
}

}  // namespace

SignalWait::SignalWait() {
  sigemptyset(&set_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    sigaddset(&set_, signal);
  }
  sigprocmask(SIG_BLOCK, &set_, &before_);
}

SignalWait::~SignalWait() {
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWait::wait() const {
  const timespec timeout = {0, 200'000'000};
  const int signal = sigtimedwait(&set_, nullptr, &timeout);
  return signal > 0 ? signal : 0;
}

void SignalWait::forget_sigterm() {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGTERM);
  constexpr timespec kNow = {0, 0};
  sigtimedwait(&only, nullptr, &kNow);
}

pid_t start_process(const Job& job, const std::string& folder, const SignalWait& signals) {
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

ProcessEnd wait_for(pid_t pid, const SignalWait& signals) {
  ProcessEnd ending;
  int status = 0;
  std::optional<Clock::time_point> kill_at;
  for (pid_t ended = 0; (ended = waitpid(pid, &status, WNOHANG)) != pid;) {
    if (ended < 0 && errno != EINTR) {
      throw Error(ExitCode::kTrainingFailed, "cannot wait for process " + std::to_string(pid) +
                                                 ": " + std::generic_category().message(errno));
    }
    const int signal = signals.wait();
    if (signal != 0 && signal != SIGCHLD) {
      kill(-pid, signal);
      (signal == SIGTERM ? ending.terminated : ending.interrupted) = true;
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

}  // namespace ddp::submit
