// common/launch/spawn.cpp - starts one process per rank, watches them, and tells how they ended.
#include "common/launch/spawn.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <utility>

#include "common/base/exit_codes.hpp"
#include "common/base/private_file.hpp"
#include "common/base/process.hpp"
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

/// A rank's end, a rank's line, and what is forwarded to the ranks.
std::vector<int> watched_signals() {
  std::signal(SIGCHLD, SIG_DFL);  // ignored, it would make the exit codes vanish
  std::vector<int> signals = {SIGCHLD, SIGIO};
  for (const int forwarded : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    struct sigaction action {};
    sigaction(forwarded, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {  // under nohup, SIGHUP stays ignored
      signals.push_back(forwarded);
    }
  }
  return signals;
}

/// Where ranks hand their errors to the parent, one message each: see Note [One line].
class ErrorSocket {
 public:
  /// From now on SIGIO comes with every message. @throws TransientError
  ErrorSocket() {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw TransientError(fmt::format("cannot make a socket: {}", std::strerror(errno)));
    }
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
    fcntl(ends[0], F_SETOWN, getpid());
    fcntl(ends[0], F_SETFL, O_NONBLOCK | O_ASYNC);
  }
  int write_end() const { return write_end_.get(); }

  std::optional<internal::RankError> next() const {
    constexpr size_t kNumbersBytes = size_t{1} << 14;  // the code, process ids of a thousand ranks
    std::vector<char> text(internal::kMostErrorBytes + kNumbersBytes);
    const ssize_t size = recv(read_end_.get(), text.data(), text.size(), 0);
    return size <= 0
               ? std::nullopt
               : std::optional(internal::rank_error_from({text.data(), static_cast<size_t>(size)}));
  }

 private:
  FileDescriptor read_end_;
  FileDescriptor write_end_;
};

/// The processes of all ranks. Whatever happens, none is left when this object is gone.
class Ranks {
 public:
  explicit Ranks(std::string program) : program_(std::move(program)) {}
  ~Ranks() {
    signal_all(SIGKILL);
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        waitpid(pid, nullptr, 0);
      }
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void start(const std::vector<std::string>& argv, int world_size,
             const std::vector<int>& held_signals) {
    // Where the ranks meet: memory without a name, which only they and this user can open.
    const FileDescriptor store(create_nameless_file());
    if (!store.is_open()) {
      throw TransientError(fmt::format("cannot make the store's file: {}", std::strerror(errno)));
    }
    std::cout << std::flush;
    // An outer launcher's variables, if it started just this process, say nothing about its ranks.
    std::map<std::string, std::optional<std::string>> variables = {
        {"DDP_LAUNCHER", "spawn"},
        {"DDP_ERROR_FD", std::to_string(errors_.write_end())},
        {"WORLD_SIZE", std::to_string(world_size)},
        {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
        {"DDP_STORE_FD", std::to_string(store.get())},
        {"MASTER_ADDR", std::nullopt},
        {"MASTER_PORT", std::nullopt},
        {"GROUP_RANK", std::nullopt},
        {"GROUP_WORLD_SIZE", std::nullopt},
        {"TORCHELASTIC_RUN_ID", std::nullopt},
        {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt},
    };
    StartOptions options;
    options.program = "/proc/self/exe";
    options.parent_death_signal = SIGKILL;
    options.signal_mask = signals_.original();
    for (const int signal : held_signals) {
      sigaddset(&*options.signal_mask, signal);
    }
    options.inherited_fds = {errors_.write_end(), store.get()};
    for (int rank = 0; rank < world_size; ++rank) {
      variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
      options.environment = environment_with(variables);
      try {
        pids_.push_back(start_process(argv, options));
      } catch (const CannotRun& error) {
        throw Error(ExitCode::kTrainingFailed,
                    fmt::format("cannot start rank {}: {}", rank, error.code().message()));
      } catch (const std::system_error& error) {
        throw TransientError(fmt::format("cannot start rank {}: {}", rank, error.code().message()));
      }
    }
  }

  /// @return the exit code of all together
  int wait() {
    const auto running = [](pid_t pid) { return pid > 0; };
    while (std::any_of(pids_.begin(), pids_.end(), running)) {
      std::optional<double> patience_s;
      if (kill_at_) {
        patience_s = std::chrono::duration<double>(*kill_at_ - Clock::now()).count();
      }
      const siginfo_t info = signals_.wait(patience_s);
      if (info.si_signo == SIGCHLD || info.si_signo == SIGIO) {
        look_at_ranks(info.si_signo == SIGCHLD ? info.si_pid : 0);
      } else if (info.si_signo > 0) {
        signal_all(info.si_signo);
        if (info.si_signo != SIGUSR1 && info.si_signo != SIGUSR2) {
          leave_by(kGraceAfterRequest);
        }
      } else if (kill_at_ && Clock::now() >= *kill_at_) {
        killed_ = true;
        signal_all(SIGKILL);
        kill_at_.reset();
      }
    }
    return failure_ != 0 ? failure_ : run_again_ ? kRunAgain : 0;
  }

 private:
  struct Ended {
    size_t rank;
    pid_t pid;
    ProcessEnd end;
  };

  /// See Note [One line].
  /// @param first of the ranks that have ended since the last look, if known
  void look_at_ranks(pid_t first) {
    // Several deaths may come as one signal; it carries the first, the cause of the others.
    std::vector<size_t> ending;
    for (const bool is_first : {true, false}) {
      for (size_t rank = 0; rank < pids_.size(); ++rank) {
        const pid_t pid = pids_[rank];
        if (pid != 0 && is_first == (pid == first) && has_ended(pid)) {
          ending.push_back(rank);
        }
      }
    }
    // After noting who has ended: a rank speaks before it ends, so nothing is missed. And before
    // collecting them: a rank that speaks lists those that are there to be collected.
    while (const auto error = errors_.next()) {
      said_ = said_ ? said_ : error;
    }
    std::vector<Ended> ended;
    for (const size_t rank : ending) {
      const pid_t pid = std::exchange(pids_[rank], 0);
      ended.push_back({rank, pid, poll_process(pid).value()});
    }
    // A rank that was not ending when the first word was said is not its cause: the word was its
    // own, or brought it down.
    const auto may_be_cause = [this](pid_t pid) {
      return !said_ || std::ranges::find(said_->ending, pid) != said_->ending.end();
    };
    for (const auto& [rank, pid, end] : ended) {
      if (end.exit_code == kRunAgain) {
        run_again_ = true;  // all ranks agreed to stop: the others follow
      } else if (end.exit_code == 0) {
        done_.push_back(rank);
      } else if (failure_ == 0 && may_be_cause(pid)) {
        fail_without_word(rank, end);
      }
    }
    if (failure_ == 0 && said_ && std::ranges::none_of(pids_, may_be_cause)) {
      fail(said_->code, said_->line + whereabouts());
    }
  }

  /// For another rank's error, which may be that these are missing: not every backend says whom it
  /// misses. A library may have called exit().
  std::string whereabouts() const {
    std::vector<size_t> stopped;
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      if (pids_[rank] > 0 && process_state(pids_[rank]) == 'T') {
        stopped.push_back(rank);
      }
    }
    std::string text;
    for (const auto& [what, ranks] :
         {std::pair("ended with code 0 before", done_), std::pair("stopped", stopped)}) {
      text += ranks.empty() ? "" : fmt::format(" ({}: rank {})", what, fmt::join(ranks, ", "));
    }
    return text;
  }

  void fail_without_word(size_t rank, const ProcessEnd& end) {
    constexpr int kSignalBase = 128;
    const bool exited = end.signal == 0;
    const std::string how = exited    ? fmt::format("exited with code {}", end.exit_code)
                            : killed_ ? "did not stop in time and was killed"
                                      : "was killed by " + signal_name(end.signal);
    fail(exited ? end.exit_code : kSignalBase + end.signal,
         fmt::format("{}: error: rank {} {}", program_, rank, how));
  }

  void fail(int code, const std::string& line) {
    failure_ = code;
    std::cerr << line + "\n" << std::flush;
    signal_all(SIGTERM);
    leave_by(kGraceAfterFailure);
  }

  void signal_all(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        // A rank that is killed cannot end what it has started, so this goes to the whole group.
        kill(signal == SIGKILL ? -pid : pid, signal);
        if (signal == SIGTERM) {
          kill(pid, SIGCONT);  // a rank that was stopped would not hear it
        }
      }
    }
  }

  void leave_by(std::chrono::seconds grace) {
    const Clock::time_point deadline = Clock::now() + grace;
    kill_at_ = std::min(kill_at_.value_or(deadline), deadline);
  }

  std::string program_;
  // Never unblocked here: a late second SIGTERM must not replace the exit code.
  BlockedSignals signals_{watched_signals(), BlockedSignals::Until::kForever};
  std::vector<pid_t> pids_;  ///< by rank; 0: gone
  std::optional<Clock::time_point> kill_at_;
  bool killed_ = false;
  bool run_again_ = false;
  int failure_ = 0;  ///< the exit code that goes with the line that was printed
  ErrorSocket errors_;
  std::optional<internal::RankError> said_;  ///< by the first rank that said something
  std::vector<size_t> done_;  ///< ranks that have ended with code 0
};

int processes_to_start(const Options& options) {
  const int devices = options.device == "cpu" ? 0 : count_cuda_devices();
  if (options.device == "cuda" && devices == 0) {
    throw UsageError("--device cuda: " + why_no_cuda_device() + "; use --device cpu");
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
  internal::refuse_several(options, environment, "starts its own processes");
  const int world_size = processes_to_start(options);
  resolve_batch_per_rank(options, world_size);
  // Requests wait until a rank has loaded its libraries: remember_user_signals() hears them.
  return start_ranks(options.program, {argv, argv + argc}, world_size, {SIGUSR1, SIGUSR2});
}

}  // namespace

int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals) {
  Ranks ranks(program);
  ranks.start(argv, world_size, held_signals);
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
