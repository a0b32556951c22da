#include "common/base/process.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/base/parse.hpp"
#include "common/base/patience.hpp"

namespace ddp {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result(strings.size() + 1);  // the last one is null
  std::ranges::transform(strings, result.begin(), [](std::string& text) { return text.data(); });
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
  dup2(options.out_fd, STDOUT_FILENO);
  dup2(options.err_fd, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);  // this process ignores both, for itself
  signal(SIGXFSZ, SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (options.cwd.empty() || chdir(options.cwd.c_str()) == 0) {
    execvpe(program, argv, environment);
  }
  return errno;
}

/// @return the process id, once the program runs
pid_t start(std::vector<std::string> argv, ChildOptions options) {
  std::vector<std::string> variables =
      options.environment ? *options.environment : environment_with({});
  const std::vector<char*> argument_pointers = pointers(argv);
  const std::vector<char*> variable_pointers = pointers(variables);
  const std::string program = options.program.empty() ? argv.at(0) : options.program;
  const sigset_t mask = options.signal_mask.value_or(sigset_t{});

  // Carries errno if the program cannot be run, else just closes.
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail("cannot make a pipe", errno);
  }
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    const int reason = become(program.c_str(), argument_pointers.data(), variable_pointers.data(),
                              options, mask, parent);
    [[maybe_unused]] const ssize_t written = write(write_end.get(), &reason, sizeof(reason));
    _exit(kCannotRunExitCode);
  }
  if (pid < 0) {
    fail("cannot start a process", errno);
  }
  write_end.reset();
  int reason = 0;
  uninterrupted([&] { return read(read_end.get(), &reason, sizeof(reason)); });
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

/// Appends, because a program's processes write side by side, and a file in memory does not lock
/// the position that they share.
FileDescriptor memory_file(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND) != 0) {
    fail("cannot make a file in memory", errno);
  }
  return FileDescriptor(fd);
}

}  // namespace

Child::Child(const std::vector<std::string>& argv, const ChildOptions& options)
    : pid_(start(argv, options)) {}

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
  if (ended < 0) {
    fail(fmt::format("cannot wait for process {}", pid_), errno);
  }
  if (ended > 0) {
    end_ = ProcessEnd{.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                      .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0};
  }
  return end_;
}

CapturedChild::CapturedChild(const std::vector<std::string>& argv, ChildOptions options)
    : out_(memory_file("stdout")), err_(memory_file("stderr")), child_(argv, [&] {
        options.out_fd = out_.get();
        options.err_fd = err_.get();
        return options;
      }()) {}

std::string CapturedChild::content_of(const FileDescriptor& file) {
  return read_text(fmt::format("/proc/self/fd/{}", file.get()));
}

CaptureResult CapturedChild::wait(double timeout_s) {
  CaptureResult result;
  while (!has_ended(child_.pid())) {
    if (!result.timed_out && seconds_since(start_) > timeout_s) {
      result.timed_out = true;
      child_.signal(SIGKILL);
    }
    usleep(1000);
  }
  result.seconds = seconds_since(start_);
  child_.signal(SIGKILL);  // to its group, before poll() frees the process id
  static_cast<ProcessEnd&>(result) = child_.poll().value();
  result.out = out();
  result.err = err();
  return result;
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
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "" : path, ':')) {
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

siginfo_t BlockedSignals::wait(std::optional<double> seconds) const {
  const auto ns = static_cast<int64_t>(std::max(seconds.value_or(0), 0.0) * 1e9);
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  siginfo_t info{};
  if (sigtimedwait(&blocked_, &info, seconds ? &timeout : nullptr) < 0) {
    info = {};
  }
  return info;
}

double peak_rss_mib() {
  const int64_t kib = number_after("VmHWM:", read_text("/proc/self/status"));
  return kib > 0 ? static_cast<double>(kib) / 1024 : std::numeric_limits<double>::quiet_NaN();
}

std::chrono::system_clock::time_point process_start() {
  const std::string text = read_text("/proc/self/stat");
  // The second field, the program's name in parentheses, may hold blanks; start time is the 22nd.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    fields >> field;
  }
  const auto tick = std::chrono::nanoseconds(std::chrono::seconds(1)) / sysconf(_SC_CLK_TCK);
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return std::chrono::system_clock::now() - std::chrono::seconds(since_boot.tv_sec) -
         std::chrono::nanoseconds(since_boot.tv_nsec) + std::stoll(field) * tick;
}

}  // namespace ddp
