#include "common/base/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "common/base/files.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

/// Pipe that started programs do not inherit.
struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      fail("cannot make a pipe", errno);
    }
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  FileDescriptor read_end;
  FileDescriptor write_end;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

/// Turns the new process into the program. Only async-signal-safe calls: there may be threads.
/// @return errno if the program cannot be run
int become(const char* program, char* const* argv, char* const* environment,
           const ChildOptions& options, const sigset_t& mask, pid_t parent) {
  setpgid(0, 0);
  if (options.parent_death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, options.parent_death_signal);
    if (getppid() != parent) {
      _exit(kCannotRunExitCode);  // the parent died before prctl()
    }
  }
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  if (options.out_fd >= 0) {
    dup2(options.out_fd, STDOUT_FILENO);
  }
  if (options.err_fd >= 0) {
    dup2(options.err_fd, STDERR_FILENO);
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (options.cwd.empty() || chdir(options.cwd.c_str()) == 0) {
    execvpe(program, argv, environment);
  }
  return errno;
}

/// @return the process id, once the program runs
pid_t start(std::vector<std::string> argv, ChildOptions options) {
  std::vector<std::string> variables = options.environment.value_or(std::vector<std::string>());
  const std::vector<char*> argument_pointers = pointers(argv);
  const std::vector<char*> variable_pointers = pointers(variables);
  char* const* const environment = options.environment ? variable_pointers.data() : environ;
  const std::string program = options.program.empty() ? argv.at(0) : options.program;
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
  uninterrupted([&] { return read(failure.read_end.get(), &reason, sizeof(reason)); });
  if (reason != 0) {
    waitpid(pid, nullptr, 0);
    throw CannotRun(reason, std::generic_category(), "cannot run " + program);
  }
  return pid;
}

bool has_ended(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

}  // namespace

void FileDescriptor::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

Child::Child(const std::vector<std::string>& argv, const ChildOptions& options)
    : options_(options) {
  if (!options.capture) {
    pid_ = start(argv, options_);
    return;
  }
  Pipe out;
  Pipe err;
  options_.out_fd = out.write_end.get();
  options_.err_fd = err.write_end.get();
  pid_ = start(argv, options_);
  out_.reset(out.read_end.release());
  err_.reset(err.read_end.release());
}

Child::~Child() {
  signal(SIGKILL);
  if (!end_) {
    waitpid(pid_, nullptr, 0);
  }
}

void Child::signal(int signal) const {
  if (!end_) {
    kill(-pid_, signal);
  }
}

std::optional<ProcessEnd> Child::poll() {
  if (end_) {
    return end_;
  }
  int status = 0;
  const pid_t ended = uninterrupted([&] { return waitpid(pid_, &status, WNOHANG); });
  if (ended == 0) {
    return std::nullopt;
  }
  if (ended < 0) {
    fail(fmt::format("cannot wait for process {}", pid_), errno);
  }
  end_ = ProcessEnd{.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                    .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  return end_;
}

/// Waits for output until `until_s`. @return false once both streams are closed
bool Child::read_some(double until_s) {
  std::array<pollfd, 2> streams = {pollfd{out_.get(), POLLIN, 0}, pollfd{err_.get(), POLLIN, 0}};
  if (!out_.is_open() && !err_.is_open()) {
    return false;
  }
  const double left_ms = std::clamp((until_s - seconds_since(start_)) * 1e3, 0.0, 1e6);
  ::poll(streams.data(), streams.size(), static_cast<int>(left_ms) + 1);
  for (const pollfd& stream : streams) {
    if (stream.fd < 0 || stream.revents == 0) {
      continue;
    }
    const bool is_out = stream.fd == out_.get();
    std::array<char, 65536> buffer;
    const ssize_t count =
        uninterrupted([&] { return read(stream.fd, buffer.data(), buffer.size()); });
    if (count > 0) {
      (is_out ? result_.out : result_.err).append(buffer.data(), static_cast<size_t>(count));
    } else {
      (is_out ? out_ : err_).close();
    }
  }
  return true;
}

bool Child::wait_for_output(const std::string& text) {
  const auto is_there = [&] { return result_.out.find(text) != std::string::npos; };
  while (!is_there() && seconds_since(start_) < options_.timeout_s &&
         read_some(options_.timeout_s)) {
  }
  return is_there();
}

CaptureResult Child::wait() {
  constexpr double kLookSeconds = 0.02;  // between two checks for its end
  constexpr double kLingerSeconds = 1;  // for output, which may stay open for ever
  while (!has_ended(pid_)) {
    if (!read_some(seconds_since(start_) + kLookSeconds)) {
      usleep(1000);  // its streams are closed, but it still runs
    }
    if (!result_.timed_out && seconds_since(start_) > options_.timeout_s) {
      result_.timed_out = true;
      signal(SIGKILL);
    }
  }
  result_.seconds = seconds_since(start_);
  signal(SIGKILL);  // to its group, before poll() frees the process id
  while (seconds_since(start_) < result_.seconds + kLingerSeconds &&
         read_some(result_.seconds + kLingerSeconds)) {
  }
  static_cast<ProcessEnd&>(result_) = poll().value();
  return result_;
}

CaptureResult run_captured(const std::vector<std::string>& argv, ChildOptions options) {
  options.capture = true;
  return Child(argv, options).wait();
}

std::vector<std::string> environment_with(
    const std::map<std::string, std::optional<std::string>>& changes,
    const std::function<bool(std::string_view)>& is_dropped) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const bool is_changed = changes.contains(std::string(text.substr(0, text.find('='))));
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

bool is_executable(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + name;
    if (!folder.empty() && is_executable(candidate)) {
      return candidate;
    }
  }
  return std::nullopt;
}

std::string signal_name(int signal) {
  return fmt::format("signal {} ({})", signal, strsignal(signal));
}

BlockedSignals::BlockedSignals(const std::vector<int>& signals) {
  sigemptyset(&blocked_);
  for (const int signal : signals) {
    sigaddset(&blocked_, signal);
  }
  sigprocmask(SIG_BLOCK, &blocked_, &original_);
}

void BlockedSignals::stop() {
  sigset_t only_stop;
  sigemptyset(&only_stop);
  sigaddset(&only_stop, SIGTSTP);
  raise(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &only_stop, nullptr);
  sigprocmask(SIG_BLOCK, &only_stop, nullptr);
}

siginfo_t BlockedSignals::wait(std::optional<double> seconds, int except) const {
  sigset_t signals = blocked_;
  if (except != 0) {
    sigdelset(&signals, except);
  }
  const double positive = std::max(seconds.value_or(0), 0.0);
  const timespec timeout{static_cast<time_t>(positive),
                         static_cast<long>((positive - std::floor(positive)) * 1e9)};
  siginfo_t info{};
  if (sigtimedwait(&signals, &info, seconds ? &timeout : nullptr) < 0) {
    info = {};
  }
  return info;
}

}  // namespace ddp
