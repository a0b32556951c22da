#include "bench/run/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "bench/run/processor_use.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/launch/cpu_share.hpp"

namespace ddp::bench {
namespace {

constexpr double kGraceSeconds = 5;  // between SIGTERM and SIGKILL
constexpr double kTickSeconds = 0.5;  // how often progress is shown and the GPUs are looked at
constexpr std::streamoff kMaxOutputBytes = 65536;
constexpr std::size_t kMaxReasonBytes = 300;

// What launchers (docs/launchers.md) say to one process of a job.
constexpr std::string_view kIdentityPrefixes[] = {
    "RANK=",
    "LOCAL_RANK=",
    "WORLD_SIZE=",
    "LOCAL_WORLD_SIZE=",
    "GROUP_RANK=",
    "MASTER_ADDR=",
    "MASTER_PORT=",
    "TORCHELASTIC_",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_",
    "PMIX_",
    "PMI_",
    "SLURM_STEP_ID=",
    "SLURM_STEPID=",
    // srun's tasks see all GPUs of their node, as in slurm/common.sh.
    "SLURM_GPU_BIND=",
    "SLURM_GPUS_PER_TASK=",
    "SLURM_NTASKS_PER_GPU=",
    "SLURM_TRES_PER_TASK=",
    "SLURM_TRES_BIND=",
    "_CONDOR_PROCNO=",
    "_CONDOR_NPROCS=",
    "ROLE_RANK=",
    "ROLE_WORLD_SIZE=",
    "GROUP_WORLD_SIZE=",
    "MPI_LOCAL",
    "FLUX_TASK_",
    "FLUX_JOB_SIZE=",
    "FLUX_JOB_NNODES=",
    "JSM_NAMESPACE_",
    "PALS_",
    "PBS_TASKNUM=",
    "JOB_COMPLETION_INDEX=",
    "PET_N",
    "MV2_COMM_WORLD_",
};

bool is_identity(std::string_view variable) {
  return std::any_of(std::begin(kIdentityPrefixes), std::end(kIdentityPrefixes),
                     [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

double unix_ms_now() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// "2026-11-23T16:20:00Z"
std::string format_utc(double unix_ms) {
  const auto seconds = static_cast<std::time_t>(unix_ms / 1e3);
  std::tm date{};
  gmtime_r(&seconds, &date);
  std::array<char, sizeof("2026-11-23T16:20:00Z")> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%FT%TZ", &date)};
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

/// All living processes that descend from this one and from no peers' server, by the parent that
/// /proc names.
std::vector<pid_t> descendants(const PeerServers& peers) {
  const std::vector<std::pair<pid_t, pid_t>> all = processes_and_parents();
  std::vector<pid_t> found = {getpid()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [child, parent] : all) {
      if (parent == found[i] && !peers.contains(child)) {
        found.push_back(child);
      }
    }
  }
  found.erase(found.begin());
  return found;
}

/// This process adopts its orphans (see run_child), so everything that descends from it belongs to
/// the command that it runs, wherever a launcher put it.
/// @return false if there was nothing
bool kill_descendants(const PeerServers& peers) {
  const std::vector<pid_t> found = descendants(peers);
  for (const pid_t pid : found) {
    kill(pid, SIGKILL);
  }
  return !found.empty();
}

/// Ends what a command left behind.
void end_leftovers(const PeerServers& peers) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (!kill_descendants(peers)) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

FileDescriptor open_output(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) {
    throw std::system_error(errno, std::generic_category());
  }
  return FileDescriptor(fd);
}

/// Waits for `pid` and stops it when the time is over or on an interrupt.
void watch(pid_t pid, double timeout_s, Session& session, ChildResult& result) {
  const auto start = std::chrono::steady_clock::now();
  double give_up_s = timeout_s;
  bool asked_to_end = false;
  std::optional<ProcessEnd> end;
  while (!(end = poll_process(pid))) {
    const double elapsed_s = seconds_since(start);
    const bool interrupted_now = session.interrupts.requested() && !result.interrupted;
    if (asked_to_end && elapsed_s >= give_up_s) {
      kill(-pid, SIGKILL);
      kill_descendants(session.peers);
      give_up_s = elapsed_s + 1;
    } else if (!asked_to_end && (interrupted_now || elapsed_s >= give_up_s)) {
      result.interrupted = interrupted_now;
      result.timed_out = !interrupted_now;
      kill(-pid, SIGTERM);
      asked_to_end = true;
      give_up_s = elapsed_s + kGraceSeconds;
    }
    session.interrupts.wait_for_child(
        std::clamp(give_up_s - seconds_since(start), 0.001, kTickSeconds));
    if (const std::optional<GpuReadings> gpus = session.gpus.sample()) {
      result.gpu_power.push_back({unix_ms_now(), gpus->power_w * gpus->gpus});
    }
    session.progress.tick();
  }
  static_cast<ProcessEnd&>(result) = *end;
}

/// The line of a program's standard error that most likely tells what was wrong. Launchers wrap
/// it in pages of their own, so the first line that speaks of an error counts, else the last one.
std::string reason_in(const std::string& err) {
  std::istringstream lines(err);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r-=*") == std::string::npos) {
      continue;
    }
    last = line;
    if (line.find("error:") != std::string::npos) {
      break;
    }
  }
  std::replace_if(
      last.begin(), last.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return last.size() > kMaxReasonBytes ? last.substr(0, kMaxReasonBytes) + "..." : last;
}

}  // namespace

ChildResult run_child(const Command& command, Session& session) {
  ChildResult result;
  if (session.interrupts.requested()) {
    result.interrupted = true;
    return result;
  }
  // Orphans come to this process instead of init: torchrun gives each worker a session of its own,
  // so killing process groups would not reach them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  const std::string out_path = session.scratch.path() + "/stdout";
  const std::string err_path = session.scratch.path() + "/stderr";
  const auto start = std::chrono::steady_clock::now();
  const std::optional<ProcessorTimes> times_before = processor_times();
  result.start_unix_ms = unix_ms_now();
  try {
    const FileDescriptor out = open_output(out_path);
    const FileDescriptor err = open_output(err_path);
    StartOptions options;
    options.environment = environment_with({command.env.begin(), command.env.end()}, is_identity);
    options.cwd = command.cwd;
    options.out_fd = out.get();
    options.err_fd = err.get();
    options.parent_death_signal = SIGTERM;
    options.signal_mask = session.interrupts.original_mask();
    watch(start_process(command.argv, options), command.timeout_s, session, result);
  } catch (const CannotRun& error) {
    result.exit_code = kCannotRunExitCode;
    result.err = error.what();
    return result;
  } catch (const std::system_error& error) {
    throw Error(ExitCode::kTrainingFailed,
                fmt::format("cannot start a process in {}: {}", session.scratch.path(),
                            error.code().message()));
  }
  result.seconds = seconds_since(start);
  end_leftovers(session.peers);
  const ProcessorUse use = use_between(times_before, processor_times());
  result.conditions = {
      .started = format_utc(result.start_unix_ms),
      .steal_share = use.stolen_share,
      .others_busy_share = use.others_share,
      .affinity = format_cores(allowed_cores()),
      .scheduling = scheduling_class(),
  };
  result.out = read_tail(out_path);
  result.err = read_tail(err_path);
  return result;
}

std::string describe_failure(const ChildResult& result, double timeout_s) {
  const std::string end = result.timed_out ? fmt::format("still running after {:g} s", timeout_s)
                          : result.signal != 0 ? "killed by " + signal_name(result.signal)
                                               : fmt::format("exit code {}", result.exit_code);
  const std::string reason = reason_in(result.err);
  // What a launcher says about having been stopped is not why it hung.
  const bool is_why = !result.timed_out || reason.find("error:") != std::string::npos;
  return reason.empty() || !is_why ? end : end + ": " + reason;
}

}  // namespace ddp::bench
