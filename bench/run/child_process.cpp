#include "bench/run/child_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGraceSeconds = 5;  // between SIGTERM and SIGKILL
constexpr double kTickSeconds = 0.5;  // how often `tick` is called
constexpr std::streamoff kMaxOutputBytes = 65536;

// What torchrun, Open MPI, other PMIs, Slurm and HTCondor say to one process of a job.
constexpr std::string_view kIdentityPrefixes[] = {
    "RANK=",           "LOCAL_RANK=",  "WORLD_SIZE=",      "LOCAL_WORLD_SIZE=", "GROUP_RANK=",
    "MASTER_ADDR=",    "MASTER_PORT=", "TORCHELASTIC_",    "OMPI_COMM_WORLD_",  "OMPI_UNIVERSE_",
    "PMIX_",           "PMI_",         "SLURM_STEP_ID=",   "SLURM_STEPID=",     "_CONDOR_PROCNO=",
    "_CONDOR_NPROCS=", "ROLE_RANK=",   "ROLE_WORLD_SIZE=", "GROUP_WORLD_SIZE=",
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

timespec to_timespec(double seconds) {
  const double whole = std::floor(std::max(seconds, 0.0));
  timespec result{};
  result.tv_sec = static_cast<time_t>(whole);
  result.tv_nsec = static_cast<long>((std::max(seconds, 0.0) - whole) * 1e9);
  return result;
}

sigset_t make_set(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) {
    sigaddset(&set, signal);
  }
  return set;
}

std::vector<std::string> child_environment(const std::map<std::string, std::string>& extra) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool is_identity = std::any_of(
        std::begin(kIdentityPrefixes), std::end(kIdentityPrefixes),
        [&](std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; });
    const bool is_replaced = extra.count(std::string(text.substr(0, text.find('=')))) > 0;
    if (!is_identity && !is_replaced) {
      result.emplace_back(text);
    }
  }
  for (const auto& [name, value] : extra) {
    result.push_back(name);
    result.back().append("=").append(value);
  }
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

std::string read_tail(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    return "";
  }
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kMaxOutputBytes));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// All living processes that descend from `root`, by the parent that /proc names.
std::vector<pid_t> descendants(pid_t root) {
  std::vector<std::pair<pid_t, pid_t>> parent_and_child;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    std::getline(file,
                 stat);  // fails, where an iterator would throw, if the process is gone by now
    const std::size_t after_name = stat.rfind(") ");  // the name itself may hold any character
    if (after_name == std::string::npos || stat.size() < after_name + 5) {
      continue;
    }
    parent_and_child.emplace_back(std::atoi(stat.c_str() + after_name + 4),
                                  std::atoi(name.c_str()));
  }
  std::vector<pid_t> found = {root};
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [parent, child] : parent_and_child) {
      if (parent == found[i]) {
        found.push_back(child);
      }
    }
  }
  found.erase(found.begin());
  return found;
}

/// Ends what a command left behind. This process adopts its orphans (see run_child), so everything
/// that still descends from it is such a rest, wherever a launcher put it.
void end_leftovers() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<pid_t> rest = descendants(getpid());
    if (rest.empty()) {
      return;
    }
    for (const pid_t pid : rest) {
      kill(pid, SIGKILL);
    }
    const timespec pause = to_timespec(0.01);
    nanosleep(&pause, nullptr);
  }
}

[[noreturn]] void exec_child(const std::vector<char*>& argv, const std::vector<char*>& env,
                             const char* cwd, int out_fd, int err_fd, const sigset_t& mask,
                             pid_t parent) {
  // Only async-signal-safe calls from here to exec.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) {
    _exit(127);  // the parent died before the line above
  }
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null_fd, STDIN_FILENO);
  dup2(out_fd, STDOUT_FILENO);
  dup2(err_fd, STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (cwd[0] == '\0' || chdir(cwd) == 0) {
    execvpe(argv[0], argv.data(), env.data());
  }
  const char* reason = std::strerror(errno);
  for (const char* part : {"cannot run ", static_cast<const char*>(argv[0]), ": ", reason, "\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) {
      break;
    }
  }
  _exit(127);
}

}  // namespace

Interrupts::Interrupts() {
  const sigset_t blocked = make_set({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  sigprocmask(SIG_BLOCK, &blocked, &original_mask_);
}

bool Interrupts::requested() {
  wait_for_signal(0);
  return requested_;
}

void Interrupts::wait_for_child(double seconds) {
  const sigset_t waited = make_set({SIGINT, SIGTERM, SIGHUP, SIGCHLD});
  const timespec timeout = to_timespec(seconds);
  const int signal = sigtimedwait(&waited, nullptr, &timeout);
  requested_ = requested_ || (signal > 0 && signal != SIGCHLD);
}

bool Interrupts::wait_for_signal(double seconds) {
  const sigset_t waited = make_set({SIGINT, SIGTERM, SIGHUP});
  const timespec timeout = to_timespec(seconds);
  const bool came = sigtimedwait(&waited, nullptr, &timeout) > 0;
  requested_ = requested_ || came;
  return came;
}

ChildResult run_child(const Command& command, const std::string& scratch, Interrupts& interrupts,
                      const std::function<void()>& tick) {
  ChildResult result;
  if (interrupts.requested()) {
    result.interrupted = true;
    return result;
  }
  // Orphans come to this process instead of init: torchrun gives each worker a session of its own,
  // so killing process groups would not reach them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  const std::string out_path = scratch + "/stdout";
  const std::string err_path = scratch + "/stderr";
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const int out_fd = open(out_path.c_str(), flags, 0600);
  const int err_fd = open(err_path.c_str(), flags, 0600);
  std::vector<std::string> argv = command.argv;
  std::vector<std::string> env = child_environment(command.env);
  const std::vector<char*> argv_pointers = pointers(argv);
  const std::vector<char*> env_pointers = pointers(env);

  const Clock::time_point start = Clock::now();
  result.start_unix_ms =
      std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  const pid_t parent = getpid();
  const pid_t pid = out_fd < 0 || err_fd < 0 ? -1 : fork();
  if (pid == 0) {
    exec_child(argv_pointers, env_pointers, command.cwd.c_str(), out_fd, err_fd,
               interrupts.original_mask(), parent);
  }
  const int error = errno;
  close(out_fd);
  close(err_fd);
  if (pid < 0) {
    throw Error(ExitCode::kTrainingFailed, "cannot start a process in " + scratch + ": " +
                                               std::generic_category().message(error));
  }
  setpgid(pid, pid);  // also here: the child may not have run yet when the group is needed

  int status = 0;
  bool ended = false;
  double give_up_s = command.timeout_s;
  bool asked_to_end = false;
  while (!ended) {
    const pid_t waited = waitpid(pid, &status, WNOHANG);
    ended = waited == pid || (waited < 0 && errno == ECHILD);
    if (ended) {
      break;
    }
    const double elapsed_s = seconds_since(start);
    const bool interrupted_now = interrupts.requested() && !result.interrupted;
    if (asked_to_end && elapsed_s >= give_up_s) {
      for (const pid_t descendant : descendants(pid)) {
        kill(descendant, SIGKILL);
      }
      kill(-pid, SIGKILL);
      kill(pid, SIGKILL);
      give_up_s = elapsed_s + 1;
    } else if (!asked_to_end && (interrupted_now || elapsed_s >= give_up_s)) {
      result.interrupted = interrupted_now;
      result.timed_out = !interrupted_now;
      kill(-pid, SIGTERM);
      asked_to_end = true;
      give_up_s = elapsed_s + kGraceSeconds;
    }
    const double wait_s = std::max(0.001, give_up_s - seconds_since(start));
    interrupts.wait_for_child(tick ? std::min(wait_s, kTickSeconds) : wait_s);
    if (tick) {
      tick();
    }
  }
  result.seconds = seconds_since(start);
  end_leftovers();
  if (WIFEXITED(status)) {
    result.exit_code = WEXITSTATUS(status);
  } else if (WIFSIGNALED(status)) {
    result.signal = WTERMSIG(status);
  }
  result.out = read_tail(out_path);
  result.err = read_tail(err_path);
  return result;
}

std::string shell_quote(const std::vector<std::string>& argv) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,/:@%";
  std::string line;
  for (const std::string& argument : argv) {
    line += line.empty() ? "" : " ";
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) {
      line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    line += '\'';
  }
  return line;
}

}  // namespace ddp::bench
