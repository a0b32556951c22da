// common/launch/spawn.cpp - starts one process per rank, watches them, and turns errors into exit
// codes.
#include "common/launch/spawn.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "common/base/exit_codes.hpp"
#include "common/launch/device_count.hpp"
#include "common/launch/run_main.hpp"

namespace ddp {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCpuProcesses = 2;
constexpr int kRunAgain = static_cast<int>(ExitCode::kRunAgain);
// What a rank gets to leave by itself: after another one failed, and after a request to stop, when
// it may have a snapshot to write (torchrun and Slurm grant 30 s too).
constexpr std::chrono::seconds kGraceAfterFailure{5};
constexpr std::chrono::seconds kGraceAfterRequest{30};

std::string system_error(const std::string& what) {
  return what + ": " + std::strerror(errno);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// The processes of all ranks. Whatever happens, none is left when this object is gone.
class Ranks {
 public:
  explicit Ranks(std::string program);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void start(char** argv, int world_size);
  int wait();

 private:
  void start_one(char** argv, char** environment, const std::vector<int>& inherited_fds,
                 int stdin_fd);
  void reap(size_t rank);
  void fail(size_t rank, int status);
  void signal_all(int signal) const;
  void leave_by(std::chrono::seconds grace);

  std::string program_;
  sigset_t watched_{};  ///< arrive by sigtimedwait() only
  sigset_t original_{};  ///< what the ranks get back
  std::vector<pid_t> pids_;  ///< by rank; 0: gone
  std::optional<Clock::time_point> kill_at_;
  bool killed_ = false;
  bool run_again_ = false;
  int first_failure_ = 0;
  std::optional<FileDescriptor> pen_;  ///< the pipe's end to read from
};

Ranks::Ranks(std::string program) : program_(std::move(program)) {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGCHLD);
  std::signal(SIGCHLD, SIG_DFL);  // ignored, it would make the exit codes vanish
  for (const int forwarded : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    struct sigaction action {};
    sigaction(forwarded, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {  // under nohup, SIGHUP stays ignored
      sigaddset(&watched_, forwarded);
    }
  }
  // Never unblocked here: a late second SIGTERM must not replace the exit code.
  sigprocmask(SIG_BLOCK, &watched_, &original_);
}

Ranks::~Ranks() {
  signal_all(SIGKILL);
  for (const pid_t pid : pids_) {
    if (pid > 0) {
      waitpid(pid, nullptr, 0);
    }
  }
}

std::vector<std::string> environment_of_rank(int rank, int world_size, int port, int listen_fd,
                                             int pen_fd) {
  // Those of an outer launcher that started just this one process say nothing about its ranks.
  static constexpr const char* kReplaced[] = {"DDP_LAUNCHER",
                                              "DDP_STORE_LISTEN_FD",
                                              "DDP_PEN_FD",
                                              "RANK",
                                              "WORLD_SIZE",
                                              "LOCAL_RANK",
                                              "LOCAL_WORLD_SIZE",
                                              "MASTER_ADDR",
                                              "MASTER_PORT",
                                              "GROUP_RANK",
                                              "GROUP_WORLD_SIZE",
                                              "TORCHELASTIC_RUN_ID",
                                              "TORCHELASTIC_USE_AGENT_STORE"};
  std::vector<std::string> variables = {
      "DDP_LAUNCHER=spawn",
      "RANK=" + std::to_string(rank),
      "WORLD_SIZE=" + std::to_string(world_size),
      "LOCAL_RANK=" + std::to_string(rank),
      "LOCAL_WORLD_SIZE=" + std::to_string(world_size),
      "MASTER_ADDR=127.0.0.1",
      "MASTER_PORT=" + std::to_string(port),
      "DDP_PEN_FD=" + std::to_string(pen_fd),
  };
  if (rank == 0) {
    variables.push_back("DDP_STORE_LISTEN_FD=" + std::to_string(listen_fd));
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    if (std::find(std::begin(kReplaced), std::end(kReplaced), name) == std::end(kReplaced)) {
      variables.push_back(text);
    }
  }
  return variables;
}

void Ranks::start(char** argv, int world_size) {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Rank 0 serves the store on a socket that is bound before any rank starts: no port can be taken
  // in between.
  const int port = listen_on_loopback(listener.get());
  // A rank is no foreground process, so reading the terminal would stop it.
  const FileDescriptor no_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  // A pen, see Note [One line]: a pipe with one byte, for the first rank that takes it.
  int pen[2];
  if (pipe2(pen, O_CLOEXEC | O_NONBLOCK) != 0 || write(pen[1], "", 1) != 1) {
    throw TransientError(system_error("cannot make a pipe"));
  }
  pen_.emplace(pen[0]);
  const FileDescriptor pen_to_give(pen[1]);
  std::cout << std::flush;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::string> variables =
        environment_of_rank(rank, world_size, port, listener.get(), pen_->get());
    std::vector<char*> environment;
    environment.reserve(variables.size() + 1);
    for (std::string& variable : variables) {
      environment.push_back(variable.data());
    }
    environment.push_back(nullptr);
    std::vector<int> inherited_fds = {pen_->get()};
    if (rank == 0) {
      inherited_fds.push_back(listener.get());
    }
    start_one(argv, environment.data(), inherited_fds, no_input.get());
  }
}

void Ranks::start_one(char** argv, char** environment, const std::vector<int>& inherited_fds,
                      int stdin_fd) {
  constexpr int kCannotExecute = 127;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    throw TransientError(system_error("cannot start rank " + std::to_string(pids_.size())));
  }
  if (pid > 0) {
    setpgid(pid, pid);  // here too: whichever of the two processes runs first
    pids_.push_back(pid);
    return;
  }
  // From here to execve() only async-signal-safe calls: the CUDA driver may have started threads.
  // A group of its own: Ctrl-C reaches this process once, forwarded, and SIGKILL reaches its
  // children too.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(kCannotExecute);  // the parent died before it could be watched
  }
  for (const int fd : inherited_fds) {
    fcntl(fd, F_SETFD, 0);
  }
  dup2(stdin_fd, STDIN_FILENO);
  sigprocmask(SIG_SETMASK, &original_, nullptr);
  execve("/proc/self/exe", argv, environment);
  constexpr char kMessage[] = "error: cannot execute /proc/self/exe again\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(kCannotExecute);
}

void Ranks::signal_all(int signal) const {
  for (const pid_t pid : pids_) {
    if (pid > 0) {
      // SIGKILL leaves nobody to clean up after, so it goes to the whole group.
      kill(signal == SIGKILL ? -pid : pid, signal);
    }
  }
}

void Ranks::leave_by(std::chrono::seconds grace) {
  const Clock::time_point deadline = Clock::now() + grace;
  kill_at_ = std::min(kill_at_.value_or(deadline), deadline);
}

void Ranks::reap(size_t rank) {
  int status = 0;
  if (pids_[rank] == 0 || waitpid(pids_[rank], &status, WNOHANG) != pids_[rank]) {
    return;
  }
  pids_[rank] = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kRunAgain) {
    run_again_ = true;  // all ranks agreed to stop: the others follow
  } else if (status != 0 && first_failure_ == 0) {
    fail(rank, status);
  }
}

void Ranks::fail(size_t rank, int status) {
  constexpr int kSignalBase = 128;
  std::string text = program_ + ": error: rank " + std::to_string(rank);
  if (WIFEXITED(status)) {
    first_failure_ = WEXITSTATUS(status);
    text += " exited with code " + std::to_string(first_failure_);
  } else {
    const int signal = WTERMSIG(status);
    first_failure_ = kSignalBase + signal;
    text += killed_ ? " did not stop in time and was killed"
                    : " was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) +
                          ")";
  }
  if (internal::take_pen(pen_->get())) {  // else a rank's own line says it all
    std::cerr << text + "\n" << std::flush;
  }
  signal_all(SIGTERM);
  leave_by(kGraceAfterFailure);
}

int Ranks::wait() {
  const auto running = [](pid_t pid) { return pid > 0; };
  while (std::any_of(pids_.begin(), pids_.end(), running)) {
    timespec patience{};
    if (kill_at_) {
      const auto left = std::max(*kill_at_ - Clock::now(), Clock::duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      patience.tv_sec = seconds.count();
      patience.tv_nsec = std::chrono::nanoseconds(left - seconds).count();
    }
    siginfo_t info{};
    const int signal = sigtimedwait(&watched_, &info, kill_at_ ? &patience : nullptr);
    if (signal == SIGCHLD) {
      // Several deaths may come as one signal; it carries the first, which is the cause of the
      // others.
      const auto first = std::find(pids_.begin(), pids_.end(), info.si_pid);
      if (first != pids_.end()) {
        reap(static_cast<size_t>(first - pids_.begin()));
      }
      for (size_t rank = 0; rank < pids_.size(); ++rank) {
        reap(rank);
      }
    } else if (signal > 0) {
      signal_all(signal);
      if (signal != SIGUSR1 && signal != SIGUSR2) {
        leave_by(kGraceAfterRequest);
      }
    } else if (errno == EAGAIN) {
      killed_ = true;
      signal_all(SIGKILL);
      kill_at_.reset();
    }
  }
  return first_failure_ != 0 ? first_failure_ : run_again_ ? kRunAgain : 0;
}

int processes_to_start(const Options& options) {
  const int devices = options.device == "cpu" ? 0 : count_cuda_devices();
  if (options.device == "cuda" && devices == 0) {
    throw UsageError(
        "--device cuda: found no CUDA device, expected at least one; use --device cpu");
  }
  if (!options.devices.empty() && devices == 0) {
    throw UsageError("--devices was given, expected a CUDA device, found none; use --nprocs");
  }
  if (options.nprocs) {
    return *options.nprocs;
  }
  if (!options.devices.empty()) {
    return static_cast<int>(options.devices.size());
  }
  return devices > 0 ? devices : kCpuProcesses;
}

int start_and_wait(int argc, char** argv) {
  const Options options = parse_options(argc, argv, Launch::kSpawn);
  const LaunchEnvironment environment = read_launch_environment(options);
  if (environment.world_size > 1) {
    throw UsageError("world size " + std::to_string(environment.world_size) + " (" +
                     environment.launcher + "): " + options.program +
                     " starts its own processes, expected it to be started once; use "
                     "04_ddp_launcher under torchrun, mpirun or srun");
  }
  const int world_size = processes_to_start(options);
  resolve_batch_per_rank(options, world_size);
  return start_ranks(options.program, argv, world_size);
}

}  // namespace

int listen_on_loopback(int listener) {
  constexpr int kBacklog = 2048;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, generic, length) != 0 || listen(listener, kBacklog) != 0 ||
      getsockname(listener, generic, &length) != 0) {
    throw TransientError(system_error("cannot listen on 127.0.0.1"));
  }
  return ntohs(address.sin_port);
}

int start_ranks(const std::string& program, char** argv, int world_size) {
  Ranks ranks(program);
  ranks.start(argv, world_size);
  return ranks.wait();
}

int spawn(int argc, char** argv, TrainFunction train) {
  if (process_getenv("DDP_LAUNCHER")) {
    return internal::run_main(argc, argv, Launch::kSpawn, train);
  }
  return internal::leave_if_refused(
      internal::guarded(argc, argv, [&](std::string&) { return start_and_wait(argc, argv); }));
}

}  // namespace ddp
