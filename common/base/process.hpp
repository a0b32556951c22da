// common/base/process.hpp - the one way to start a program, watch it, and say how it ended.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace ddp {

/// A file descriptor that is closed when its owner goes.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void reset(int fd);  ///< closes the one before
  void close() { reset(-1); }
  int release() { return std::exchange(fd_, -1); }  ///< from now on somebody else's to close

 private:
  int fd_;
};

/// A pipe whose ends a program that is started does not inherit, unless told to.
struct Pipe {
  Pipe();  ///< @throws std::system_error
  FileDescriptor read_end;
  FileDescriptor write_end;
};

/// Where a process stands among the others.
enum class Standing {
  kOurGroup,  ///< Ctrl-C reaches it too
  kOwnGroup,  ///< Ctrl-C does not; kill(-pid, ...) reaches its children too
};

struct StartOptions {
  std::string program;  ///< what is executed; empty: argv[0], which PATH finds if it has no slash
  std::optional<std::vector<std::string>> environment;  ///< "NAME=value"; none: this process's
  std::string cwd;  ///< empty: this process's
  int out_fd = -1;  ///< its standard output; -1: this process's
  int err_fd = -1;  ///< its standard error; -1: this process's
  std::vector<int> inherited_fds;  ///< stay open in it, under the same numbers
  Standing standing = Standing::kOwnGroup;
  int parent_death_signal = 0;  ///< that it gets when the thread that started it ends; 0: none
  std::optional<sigset_t> signal_mask;  ///< none: no signal is blocked
};

/// Of a program that could not be run, as a shell has it.
inline constexpr int kCannotRunExitCode = 127;

/// The program is not there, or cannot be executed. `what()` is "cannot run NAME: reason".
class CannotRun : public std::system_error {
 public:
  using std::system_error::system_error;
};

/// Whether it is a file that this user may execute.
bool is_executable(const std::string& path);
/// The path of a program, looked up in PATH.
std::optional<std::string> find_in_path(const std::string& name);

/// Starts a program, without a shell and with nothing to read from its standard input.
/// @return once it runs
/// @throws CannotRun
/// @throws std::system_error if no process is to be had
pid_t start_process(const std::vector<std::string>& argv, const StartOptions& options = {});

/// This process's variables as "NAME=value".
/// @param changes what replaces or adds to them; none: the variable is left out
/// @param is_dropped of the text "NAME=value": left out too; may be empty
std::vector<std::string> environment_with(
    const std::map<std::string, std::optional<std::string>>& changes,
    const std::function<bool(std::string_view)>& is_dropped = {});

/// One line that bash, or any other POSIX shell, reads back as `argv`.
std::string shell_line(const std::vector<std::string>& argv);

/// How a process ended.
struct ProcessEnd {
  int exit_code = -1;  ///< -1: it did not exit by itself
  int signal = 0;  ///< that ended it
  double cpu_seconds = 0;  ///< of the process and those of its children that it waited for
};

/// Whether poll_process() would return at once with its end, or throw.
bool has_ended(pid_t pid);

/// Reaps `pid` if it has ended. @throws std::system_error if it is no child of this process
std::optional<ProcessEnd> poll_process(pid_t pid);

/// The letter of its state: 'R' if it runs, 'S' if it waits, 'T' if it was stopped, ... A process
/// that is being ended is 'Z' from before the kernel closes its files: whoever has seen one of them
/// closed finds it so. 0 if there is none.
char process_state(pid_t pid);
/// {process, its parent}, of all that there are now.
std::vector<std::pair<pid_t, pid_t>> processes_and_parents();
/// Children of `parent` in the state 'Z': that are being ended, or were not collected yet.
std::vector<pid_t> ending_children_of(pid_t parent);

/// "signal 9 (Killed)"
std::string signal_name(int signal);

/// Signals that are waited for and never interrupt anything: blocked as long as the object lives,
/// or for good.
class BlockedSignals {
 public:
  enum class Until { kEnd, kForever };
  explicit BlockedSignals(const std::vector<int>& signals, Until until = Until::kEnd);
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  /// Sleeps until one comes. @param except one that is left pending
  /// @return its number (si_signo) and sender; number 0: none came in that time, nothing yet
  siginfo_t wait(std::optional<double> seconds, int except = 0) const;
  /// What was blocked before: what a process that is started should get.
  const sigset_t& original() const { return original_; }

 private:
  sigset_t blocked_{};
  sigset_t original_{};
  Until until_;
};

struct CaptureOptions {
  StartOptions start;  ///< without out_fd and err_fd
  double timeout_s = 60;
  bool merge = false;  ///< standard error goes where standard output goes, in order
};

struct CaptureResult : ProcessEnd {
  bool timed_out = false;  ///< and was killed
  double seconds = 0;  ///< from its start to its end
  std::string out;  ///< its first 64 MiB, as of err
  std::string err;  ///< empty with merge
};

/// A running program whose output comes here. Killed, with its group if it has one of its own, at
/// the timeout, and when the object goes.
class CapturedProcess {
 public:
  /// @throws CannotRun @throws std::system_error
  explicit CapturedProcess(const std::vector<std::string>& argv,
                           const CaptureOptions& options = {});
  ~CapturedProcess();
  CapturedProcess(const CapturedProcess&) = delete;
  CapturedProcess& operator=(const CapturedProcess&) = delete;

  pid_t pid() const { return pid_; }

  /// Reads until it has printed `text` to its standard output. @return false if it ended or the
  /// timeout passed first
  bool wait_for_output(const std::string& text);
  /// Reads until it has ended and its output is complete, or was held open a second longer.
  CaptureResult wait();

 private:
  double elapsed_s() const;
  bool read_some(double until_s);
  void kill_all() const;

  CaptureOptions options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Pipe out_;
  Pipe err_;
  pid_t pid_ = -1;  ///< -1: reaped
  CaptureResult result_;
};

/// Runs the program to its end. @throws as CapturedProcess()
CaptureResult run_captured(const std::vector<std::string>& argv,
                           const CaptureOptions& options = {});

}  // namespace ddp
