#include "common/launch/spawn.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/process.hpp"
#include "common/device/hardware.hpp"
#include "common/meet/launchers.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRunAgain = static_cast<int>(ExitCode::kRunAgain);
// Time for a rank to end by itself: after another rank failed, and after a request to stop, when it
// may write a snapshot (torchrun and Slurm give 30 s too).
constexpr std::chrono::seconds kGraceAfterFailure{5};
constexpr std::chrono::seconds kGraceAfterRequest{30};

/// SIGCHLD, and signals that are meant for the ranks too.
std::vector<int> watched_signals() {
  std::signal(SIGCHLD, SIG_DFL);  // if it were ignored, there would be no exit codes
  std::vector<int> signals = {SIGCHLD};
  for (const int forwarded : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGTSTP}) {
    struct sigaction action {};
    sigaction(forwarded, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {  // under nohup, SIGHUP stays ignored
      signals.push_back(forwarded);
    }
  }
  return signals;
}

/// Processes of all ranks. The destructor kills the ranks that are left.
class RankProcesses {
 public:
  RankProcesses(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals, const std::string& file)
      : program_(program) {
    std::cout << std::flush;
    const NamesOfNumbers& names = kSpawnLauncher.numbers;
    std::map<std::string, std::optional<std::string>> variables = {
        {kSpawnLauncher.shows, kSpawnLauncher.name},
        {names.world_size, std::to_string(world_size)},
        {names.local_world_size, std::to_string(world_size)},
        {kSpawnLauncher.store_file, folder_.path() + "/store"},
        // OpenMP's library would bind all ranks alike.
        {"OMP_PROC_BIND", std::nullopt},
        {"OMP_PLACES", std::nullopt},
        {"GOMP_CPU_AFFINITY", std::nullopt},
        {"KMP_AFFINITY", std::nullopt},
    };
    leave_openmp_place();
    ChildOptions options;
    options.program =
        file.empty() ? std::filesystem::read_symlink("/proc/self/exe").string() : file;
    options.parent_death_signal = SIGKILL;
    options.signal_mask = signals_.original();
    for (const int signal : held_signals) {
      sigaddset(&*options.signal_mask, signal);
    }
    for (int rank = 0; rank < world_size; ++rank) {
      variables[names.rank] = variables[names.local_rank] = std::to_string(rank);
      options.environment = environment_with(variables);
      try {
        ranks_.push_back(std::make_unique<Child>(argv, options));
      } catch (const std::system_error& error) {
        throw TransientError(fmt::format("cannot start rank {}: {}", rank, error.what()));
      }
    }
  }

  /// Waits for all ranks. @return the exit code for spawn()
  int wait() {
    for (pid_t first = 0; look_at_ranks(first);) {
      std::optional<double> patience_s;
      if (kill_at_) {
        patience_s = std::chrono::duration<double>(*kill_at_ - Clock::now()).count();
      }
      const siginfo_t info = signals_.wait(patience_s);
      first = info.si_signo == SIGCHLD ? info.si_pid : 0;
      if (info.si_signo == SIGTSTP) {
        stop_until_continued();
      } else if (info.si_signo > 0 && info.si_signo != SIGCHLD) {
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
  /// Collects the ranks that have ended. Several deaths may come as a single signal with the pid of
  /// the first, which caused the others.
  /// @return true if a rank is left
  bool look_at_ranks(pid_t first) {
    for (const bool is_first : {true, false}) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        std::unique_ptr<Child>& child = ranks_[rank];
        if (!child || is_first != (child->pid() == first)) {
          continue;
        }
        if (const std::optional<ProcessEnd> end = child->poll()) {
          child.reset();
          note_end(rank, *end);
        }
      }
    }
    return std::ranges::any_of(ranks_, [](const auto& child) { return child != nullptr; });
  }

  /// Prints the error of a rank that a signal or a library ended: others print their own errors.
  void note_end(size_t rank, const ProcessEnd& end) {
    constexpr int kSaid[] = {1, 2, 3, 75};  // codes of ranks that have printed an error
    if (end.exit_code == kRunAgain) {
      run_again_ = true;  // all ranks agreed to stop: the others follow
    } else if (end.exit_code != 0 && failure_ == 0) {
      failure_ = end.signal == 0 ? end.exit_code : 128 + end.signal;
      if (std::ranges::find(kSaid, end.exit_code) == std::end(kSaid)) {
        std::cerr << fmt::format("{}: error: rank {} {}\n", program_, rank,
                                 end.signal == 0 ? fmt::format("exited with code {}", end.exit_code)
                                 : killed_       ? "did not stop in time and was killed"
                                                 : "was killed by " + signal_name(end.signal));
      }
      signal_all(SIGTERM);
      leave_by(kGraceAfterFailure);
    }
  }

  void signal_all(int signal) const {
    for (const auto& child : ranks_) {
      if (child) {
        child->signal(signal);
      }
    }
  }

  /// Ctrl-Z: the terminal stops only this process's group, so this stops the ranks too.
  void stop_until_continued() {
    const Clock::time_point begin = Clock::now();
    signal_all(SIGSTOP);
    BlockedSignals::stop();
    signal_all(SIGCONT);
    if (kill_at_) {
      *kill_at_ += Clock::now() - begin;
    }
  }

  void leave_by(std::chrono::seconds grace) {
    const Clock::time_point deadline = Clock::now() + grace;
    kill_at_ = std::min(kill_at_.value_or(deadline), deadline);
  }

  std::string program_;
  ScratchFolder folder_{"ddp-spawn"};  ///< private: no other user can enter it
  // Stays blocked, so that a second SIGTERM at the end does not replace the exit code.
  BlockedSignals signals_{watched_signals()};
  std::vector<std::unique_ptr<Child>> ranks_;
  std::optional<Clock::time_point> kill_at_;
  bool killed_ = false;
  bool run_again_ = false;
  int failure_ = 0;  ///< exit code of the first rank that failed
};

int processes_to_start(const DeviceOptions& options) {
  const int devices = options.device == "cpu" ? 0 : count_cuda_devices();
  if (options.device == "cuda" && devices == 0) {
    refuse("--device: got cuda, {}; use --device cpu", why_no_cuda_device());
  }
  if (!options.devices.empty() && devices == 0) {
    refuse("--devices: {}; use --nprocs", why_no_cuda_device());
  }
  if (options.nprocs) {
    return *options.nprocs;
  }
  if (!options.devices.empty()) {
    return static_cast<int>(options.devices.size());
  }
  return devices > 0 ? devices : 2;
}

}  // namespace

int start_ranks(const std::string& program, const std::vector<std::string>& argv, int world_size,
                const std::vector<int>& held_signals, const std::string& file) {
  return RankProcesses(program, argv, world_size, held_signals, file).wait();
}

int spawn(int argc, char** argv, const TrainFunction& train, const ExtraOptions& extra) {
  if (process_getenv(kSpawnLauncher.shows)) {
    return run_main(argc, argv, StartedBy::kProgram, extra, train);
  }
  return run_program([&](std::string&) {
    const Options options = parse_options(argc, argv, StartedBy::kProgram, extra);
    refuse_several(options.program, read_launch_environment(options), "starts its own processes");
    if (options.rank) {
      refuse("--rank: got {}, expected none: {} numbers its processes itself", *options.rank,
             options.program);
    }
    const int world_size = processes_to_start(options);
    resolve_batch_size(options, world_size);
    // Blocked until a rank has loaded its libraries and calls remember_user_signals().
    return start_ranks(options.program, {argv, argv + argc}, world_size, {SIGUSR1, SIGUSR2});
  });
}

}  // namespace ddp
