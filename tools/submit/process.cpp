// tools/submit/process.cpp - fork, exec, and waiting for a command's answer.
#include "tools/submit/process.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

using Clock = std::chrono::steady_clock;

std::string reason_of(int error) {
  return std::generic_category().message(error);
}

/// What a command prints goes to memory, so that nobody has to read while it runs.
class OutputFile {
 public:
  OutputFile() : fd_(memfd_create("output", MFD_CLOEXEC)) {
    if (fd_ < 0) {
      throw Error(ExitCode::kTrainingFailed, "no memory for output: " + reason_of(errno));
    }
  }
  ~OutputFile() { close(fd_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int fd() const { return fd_; }
  std::string text() const {
    constexpr std::size_t kMostBytes = std::size_t{64} << 20;
    struct stat status = {};
    fstat(fd_, &status);
    std::string text(std::min(static_cast<std::size_t>(status.st_size), kMostBytes), '\0');
    const ssize_t count = pread(fd_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  int fd_;
};

/// The first line that says something.
std::string first_line(const std::string& text) {
  for (const std::string& line : split(text, '\n')) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      return line;
    }
  }
  return "";
}

}  // namespace

pid_t start_process(const std::vector<std::string>& argv, const ProcessOptions& options) {
  std::vector<std::string> words = argv;
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    throw Error(ExitCode::kTrainingFailed, "cannot start a process: " + reason_of(errno));
  }
  if (pid > 0) {
    if (options.own_group) {
      setpgid(pid, pid);
    }
    return pid;
  }
  // Only async-signal-safe calls from here on.
  if (options.own_group) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
  }
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  dup2(options.out, STDOUT_FILENO);
  dup2(options.err, STDERR_FILENO);
  if (options.inherited_fd >= 0) {
    fcntl(options.inherited_fd, F_SETFD, 0);
  }
  sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
  const bool is_there = options.cwd.empty() || chdir(options.cwd.c_str()) == 0;
  if (is_there && (!options.own_group || getppid() == parent)) {
    execvp(pointers[0], pointers.data());
  }
  const char* const reason = std::strerror(errno);
  for (const char* const part :
       {"cannot run ", static_cast<const char*>(pointers[0]), ": ", reason, "\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) {
      break;
    }
  }
  _exit(127);
}

CommandResult run_command(const std::vector<std::string>& argv, const CommandOptions& options) {
  CommandResult result;
  if (find_program(argv[0]).empty()) {
    result.failure = argv[0] + " is not on PATH";
    return result;
  }
  const OutputFile out;
  const OutputFile err;
  ProcessOptions process;
  process.cwd = options.cwd;
  process.out = out.fd();
  process.err = err.fd();
  process.inherited_fd = options.inherited_fd;
  sigemptyset(&process.signal_mask);
  const pid_t pid = start_process(argv, process);
  result.started = true;
  const auto give_up = Clock::now() + std::chrono::duration<double>(options.timeout_s);
  bool timed_out = false;
  int status = 0;
  for (pid_t ended = 0; (ended = waitpid(pid, &status, timed_out ? 0 : WNOHANG)) != pid;) {
    if (ended < 0 && errno != EINTR) {
      result.failure = "cannot wait for " + argv[0] + ": " + reason_of(errno);
      return result;
    }
    if (Clock::now() > give_up) {
      timed_out = true;
      kill(pid, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  result.out = out.text();
  if (timed_out) {
    result.failure = argv[0] + " gave no answer within " +
                     std::to_string(static_cast<int>(options.timeout_s)) + " s";
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string errors = err.text();
    const std::string said = first_line(errors.empty() ? result.out : errors);
    result.failure =
        argv[0] +
        (WIFEXITED(status) ? " exited with " + std::to_string(WEXITSTATUS(status))
                           : " was ended by signal " + std::to_string(WTERMSIG(status))) +
        (said.empty() ? "" : ": " + quote_bytes(said));
  }
  return result;
}

std::string find_program(const std::string& name) {
  const char* const variable = std::getenv("PATH");
  const std::string folders = name.find('/') != std::string::npos ? ""
                              : variable == nullptr               ? "/usr/bin:/bin"
                                                                  : variable;
  for (const std::string& folder : split(folders, ':')) {
    const bool is_path = name.find('/') != std::string::npos;
    const std::string path = is_path ? name : (folder.empty() ? "." : folder) + "/" + name;
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        access(path.c_str(), X_OK) == 0) {
      return path;
    }
  }
  return "";
}

}  // namespace ddp::submit
