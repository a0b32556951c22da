// common/launch/spawn.cpp - starts one process per rank, watches them, and tells how they ended.
#include "common/launch/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>

#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/launch/device_count.hpp"
#include "common/launch/network.hpp"
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

/// A rank's end, and what is forwarded to the ranks.
std::vector<int> watched_signals() {
  std::signal(SIGCHLD, SIG_DFL);  // ignored, it would make the exit codes vanish
  std::vector<int> signals = {SIGCHLD};
  for (const int forwarded : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    struct sigaction action {};
    sigaction(forwarded, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {  // under nohup, SIGHUP stays ignored
      signals.push_back(forwarded);
    }
  }
  return signals;
}

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

  void start(const std::vector<std::string>& argv, int world_size) {
    // Rank 0 serves the store on a socket that is bound before any rank starts: no port can be
    // taken in between.
    const Listener store = listen_on("127.0.0.1", 0);
    const FileDescriptor listener(store.fd);
    if (write(pen_.write_end.get(), "", 1) != 1) {
      throw TransientError(fmt::format("cannot write to a pipe: {}", std::strerror(errno)));
    }
    std::cout << std::flush;
    // An outer launcher's variables, if it started just this process, say nothing about its ranks.
    std::map<std::string, std::optional<std::string>> variables = {
        {"DDP_LAUNCHER", "spawn"},
        {"DDP_PEN_FD", std::to_string(pen_.read_end.get())},
        {"WORLD_SIZE", std::to_string(world_size)},
        {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", std::to_string(store.port)},
        {"GROUP_RANK", std::nullopt},
        {"GROUP_WORLD_SIZE", std::nullopt},
        {"TORCHELASTIC_RUN_ID", std::nullopt},
        {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt},
    };
    StartOptions options;
    options.program = "/proc/self/exe";
    options.parent_death_signal = SIGKILL;
    options.signal_mask = signals_.original();
    for (int rank = 0; rank < world_size; ++rank) {
      variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
      variables["DDP_STORE_LISTEN_FD"] = std::nullopt;
      options.inherited_fds = {pen_.read_end.get()};
      if (rank == 0) {
        variables["DDP_STORE_LISTEN_FD"] = std::to_string(listener.get());
        options.inherited_fds.push_back(listener.get());
      }
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
      if (info.si_signo == SIGCHLD) {
        // Several deaths may come as one signal; it carries the first, the cause of the others.
        const auto first = std::find(pids_.begin(), pids_.end(), info.si_pid);
        if (first != pids_.end()) {
          reap(static_cast<size_t>(first - pids_.begin()));
        }
        for (size_t rank = 0; rank < pids_.size(); ++rank) {
          reap(rank);
        }
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
    return first_failure_ != 0 ? first_failure_ : run_again_ ? kRunAgain : 0;
  }

 private:
  void reap(size_t rank) {
    const std::optional<ProcessEnd> end =
        pids_[rank] == 0 ? std::nullopt : poll_process(pids_[rank]);
    if (!end) {
      return;
    }
    pids_[rank] = 0;
    if (end->exit_code == kRunAgain) {
      run_again_ = true;  // all ranks agreed to stop: the others follow
    } else if (end->exit_code != 0 && first_failure_ == 0) {
      fail(rank, *end);
    }
  }

  void fail(size_t rank, const ProcessEnd& end) {
    constexpr int kSignalBase = 128;
    const bool exited = end.signal == 0;
    first_failure_ = exited ? end.exit_code : kSignalBase + end.signal;
    if (internal::take_pen(pen_.read_end.get())) {  // else a rank's own line says it all
      const std::string how = exited    ? fmt::format("exited with code {}", end.exit_code)
                              : killed_ ? "did not stop in time and was killed"
                                        : "was killed by " + signal_name(end.signal);
      std::cerr << fmt::format("{}: error: rank {} {}\n", program_, rank, how) << std::flush;
    }
    signal_all(SIGTERM);
    leave_by(kGraceAfterFailure);
  }

  void signal_all(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        // SIGKILL leaves nobody to clean up after, so it goes to the whole group.
        kill(signal == SIGKILL ? -pid : pid, signal);
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
  int first_failure_ = 0;
  Pipe pen_{O_NONBLOCK};  ///< with one byte, for the first rank that takes it: see Note [One line]
};

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
  internal::refuse_several(options, environment, "starts its own processes");
  const int world_size = processes_to_start(options);
  resolve_batch_per_rank(options, world_size);
  return start_ranks(options.program, {argv, argv + argc}, world_size);
}

}  // namespace

int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size) {
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
