#include "common/base/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/base/seconds_since.hpp"

namespace ddp {
namespace {

constexpr std::size_t kMostOutputBytes = std::size_t{64} << 20;  // of each stream

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
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

timespec to_timespec(double seconds) {
  const double positive = std::max(seconds, 0.0);
  const double whole = std::floor(positive);
  return {static_cast<time_t>(whole), static_cast<long>((positive - whole) * 1e9)};
}

/// In the new process. Only async-signal-safe calls: this program may have threads.
/// @return errno: it did not become the program
int become(const char* program, char* const* argv, char* const* environment,
           const StartOptions& options, const sigset_t& mask, pid_t parent) {
  if (options.standing == Standing::kOwnGroup) {
    setpgid(0, 0);
  }
  if (options.parent_death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, options.parent_death_signal);
    if (getppid() != parent) {
      _exit(kCannotRunExitCode);  // it died before the line above
    }
  }
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  if (options.out_fd >= 0) {
    dup2(options.out_fd, STDOUT_FILENO);
  }
  if (options.err_fd >= 0) {
    dup2(options.err_fd, STDERR_FILENO);
  }
  for (const int fd : options.inherited_fds) {
    fcntl(fd, F_SETFD, 0);
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (options.cwd.empty() || chdir(options.cwd.c_str()) == 0) {
    execvpe(program, argv, environment);
  }
  return errno;
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

Pipe::Pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail("cannot make a pipe", errno);
  }
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
}

bool is_executable(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + (folder.ends_with('/') ? "" : "/") + name;
    if (!folder.empty() && is_executable(candidate)) {
      return candidate;
    }
  }
  return std::nullopt;
}

pid_t start_process(const std::vector<std::string>& argv, const StartOptions& options) {
  std::vector<std::string> arguments = argv;
  std::vector<std::string> variables = options.environment.value_or(std::vector<std::string>());
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> variable_pointers = pointers(variables);
  char* const* const environment = options.environment ? variable_pointers.data() : environ;
  const std::string& program = options.program.empty() ? argv.at(0) : options.program;
  sigset_t mask;
  sigemptyset(&mask);
  mask = options.signal_mask.value_or(mask);

  Pipe failure;  // carries errno if the program cannot be run, else just closes
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    const int reason =
        become(program.c_str(), argument_pointers.data(), environment, options, mask, parent);
    [[maybe_unused]] const ssize_t written =
        write(failure.write_end.get(), &reason, sizeof(reason));
    _exit(kCannotRunExitCode);
  }
  if (pid < 0) {
    fail("cannot start a process", errno);
  }
  failure.write_end.close();
  int reason = 0;
  while (read(failure.read_end.get(), &reason, sizeof(reason)) < 0 && errno == EINTR) {
  }
  if (reason != 0) {
    waitpid(pid, nullptr, 0);
    throw CannotRun(reason, std::generic_category(), "cannot run " + program);
  }
  return pid;
}

std::vector<std::string> environment_with(
    const std::map<std::string, std::optional<std::string>>& changes,
    const std::function<bool(std::string_view)>& is_dropped) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const bool is_changed = changes.count(std::string(text.substr(0, text.find('=')))) > 0;
    if (!is_changed && !(is_dropped && is_dropped(text))) {
      variables.emplace_back(text);
    }
  }
  for (const auto& [name, value] : changes) {
    if (value) {
      variables.push_back(fmt::format("{}={}", name, *value));
    }
  }
  return variables;
}

std::string shell_line(const std::vector<std::string>& argv) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,/:@%";
  std::string line;
  for (const std::string& word : argv) {
    line += line.empty() ? "" : " ";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) {
      line += c == '\'' ? "'\\''" : std::string(1, c);
    }
    line += '\'';
  }
  return line;
}

bool has_ended(pid_t pid) {
  siginfo_t info = {};
  // An error, as where somebody ignores SIGCHLD, is told by poll_process().
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

std::optional<ProcessEnd> poll_process(pid_t pid) {
  int status = 0;
  rusage used{};
  pid_t ended = 0;
  while ((ended = wait4(pid, &status, WNOHANG, &used)) < 0) {
    if (errno != EINTR) {
      fail("cannot wait for process " + std::to_string(pid), errno);
    }
  }
  if (ended == 0) {
    return std::nullopt;
  }
  ProcessEnd end;
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  for (const timeval& time : {used.ru_utime, used.ru_stime}) {
    end.cpu_seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return end;
}

namespace {

struct ProcessStat {
  char state = 0;
  pid_t parent = 0;
};

ProcessStat read_stat(pid_t pid) {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING of the kernel's sched.h
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(stat, text);
  // "123 (a name) S parent group session terminal its-group flags ..."
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  ProcessStat found;
  std::string skipped;
  unsigned flags = 0;
  fields >> found.state >> found.parent >> skipped >> skipped >> skipped >> skipped >> flags;
  if ((flags & kExiting) != 0) {
    found.state = 'Z';
  }
  return found;
}

}  // namespace

char process_state(pid_t pid) {
  return read_stat(pid).state;
}

std::vector<std::pair<pid_t, pid_t>> processes_and_parents() {
  std::vector<std::pair<pid_t, pid_t>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const pid_t pid = std::atoi(entry->path().filename().c_str());  // 0: no process
    const ProcessStat stat = pid > 0 ? read_stat(pid) : ProcessStat();
    if (stat.state != 0) {  // still there
      found.emplace_back(pid, stat.parent);
    }
  }
  return found;
}

std::vector<pid_t> ending_children_of(pid_t parent) {
  std::vector<pid_t> found;
  for (const auto& [pid, its_parent] : processes_and_parents()) {
    if (its_parent == parent && process_state(pid) == 'Z') {
      found.push_back(pid);
    }
  }
  return found;
}

std::string signal_name(int signal) {
  return fmt::format("signal {} ({})", signal, strsignal(signal));
}

BlockedSignals::BlockedSignals(const std::vector<int>& signals, Until until) : until_(until) {
  sigemptyset(&blocked_);
  for (const int signal : signals) {
    sigaddset(&blocked_, signal);
  }
  sigprocmask(SIG_BLOCK, &blocked_, &original_);
}

BlockedSignals::~BlockedSignals() {
  if (until_ == Until::kEnd) {
    sigprocmask(SIG_SETMASK, &original_, nullptr);
  }
}

siginfo_t BlockedSignals::wait(std::optional<double> seconds, int except) const {
  sigset_t signals = blocked_;
  if (except != 0) {
    sigdelset(&signals, except);
  }
  const timespec timeout = to_timespec(seconds.value_or(0));
  siginfo_t info{};
  if (sigtimedwait(&signals, &info, seconds ? &timeout : nullptr) < 0) {
    info = {};
  }
  return info;
}

CapturedProcess::CapturedProcess(const std::vector<std::string>& argv,
                                 const CaptureOptions& options)
    : options_(options) {
  options_.start.out_fd = out_.write_end.get();
  options_.start.err_fd = options.merge ? out_.write_end.get() : err_.write_end.get();
  pid_ = start_process(argv, options_.start);
  out_.write_end.close();
  err_.write_end.close();
}

CapturedProcess::~CapturedProcess() {
  if (pid_ > 0) {
    kill_all();
    waitpid(pid_, nullptr, 0);
  }
}

void CapturedProcess::kill_all() const {
  kill(options_.start.standing == Standing::kOurGroup ? pid_ : -pid_, SIGKILL);
}

double CapturedProcess::elapsed_s() const {
  return seconds_since(start_);
}

/// Waits for output until then. @return false once both streams are closed
bool CapturedProcess::read_some(double until_s) {
  std::array<pollfd, 2> streams = {pollfd{out_.read_end.get(), POLLIN, 0},
                                   pollfd{err_.read_end.get(), POLLIN, 0}};
  if (streams[0].fd < 0 && streams[1].fd < 0) {
    return false;
  }
  const double left_ms = std::clamp((until_s - elapsed_s()) * 1e3, 0.0, 1e6);
  poll(streams.data(), streams.size(), static_cast<int>(left_ms) + 1);
  for (const pollfd& stream : streams) {
    if (stream.fd < 0 || stream.revents == 0) {
      continue;
    }
    const bool is_out = stream.fd == out_.read_end.get();
    std::string& text = is_out ? result_.out : result_.err;
    std::array<char, 65536> buffer;
    const ssize_t count = read(stream.fd, buffer.data(), buffer.size());
    if (count > 0) {
      text.append(buffer.data(),
                  std::min(static_cast<std::size_t>(count), kMostOutputBytes - text.size()));
    } else if (count == 0 || errno != EINTR) {
      (is_out ? out_ : err_).read_end.close();
    }
  }
  return true;
}

bool CapturedProcess::wait_for_output(const std::string& text) {
  while (result_.out.find(text) == std::string::npos) {
    if (elapsed_s() > options_.timeout_s || !read_some(options_.timeout_s)) {
      return result_.out.find(text) != std::string::npos;
    }
  }
  return true;
}

CaptureResult CapturedProcess::wait() {
  constexpr double kLookSeconds = 0.02;  // between two looks whether it has ended
  constexpr auto kClosedSleep = std::chrono::milliseconds(1);
  // What it leaves behind may hold its output open for ever: so long it is read.
  constexpr double kLingerSeconds = 1;
  std::optional<double> ended_s;
  while (true) {
    const bool is_open = read_some(elapsed_s() + kLookSeconds);
    if (ended_s && (!is_open || elapsed_s() > *ended_s + kLingerSeconds)) {
      break;
    }
    if (!is_open) {
      std::this_thread::sleep_for(kClosedSleep);  // it closed its streams and lives on
    }
    if (!ended_s && has_ended(pid_)) {
      ended_s = elapsed_s();
    }
    if (!ended_s && elapsed_s() > options_.timeout_s) {
      result_.timed_out = true;
      kill_all();
    }
  }
  if (options_.start.standing != Standing::kOurGroup) {
    kill_all();  // what it left behind, while its number still is its own
  }
  static_cast<ProcessEnd&>(result_) = poll_process(pid_).value();
  pid_ = -1;
  result_.seconds = *ended_s;
  return result_;
}

CaptureResult run_captured(const std::vector<std::string>& argv, const CaptureOptions& options) {
  return CapturedProcess(argv, options).wait();
}

}  // namespace ddp
