#include "bench/run/child_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGraceSeconds = 5;  // between SIGTERM and SIGKILL
constexpr double kTickSeconds = 0.5;  // how often `tick` is called
constexpr std::streamoff kMaxOutputBytes = 65536;
constexpr std::size_t kMaxReasonBytes = 300;
constexpr int kCannotRun = 127;  // as a shell

// What torchrun, Open MPI, other PMIs, Slurm and HTCondor say to one process of a job.
constexpr std::string_view kIdentityPrefixes[] = {
    "RANK=",           "LOCAL_RANK=",  "WORLD_SIZE=",      "LOCAL_WORLD_SIZE=", "GROUP_RANK=",
    "MASTER_ADDR=",    "MASTER_PORT=", "TORCHELASTIC_",    "OMPI_COMM_WORLD_",  "OMPI_UNIVERSE_",
    "PMIX_",           "PMI_",         "SLURM_STEP_ID=",   "SLURM_STEPID=",     "_CONDOR_PROCNO=",
    "_CONDOR_NPROCS=", "ROLE_RANK=",   "ROLE_WORLD_SIZE=", "GROUP_WORLD_SIZE=",
};

bool is_identity(std::string_view variable) {
  return std::any_of(std::begin(kIdentityPrefixes), std::end(kIdentityPrefixes),
                     [&](std::string_view prefix) { return variable.starts_with(prefix); });
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

/// All living processes that descend from `root`, by the parent that /proc names.
std::vector<pid_t> descendants(pid_t root) {
  std::vector<std::pair<pid_t, pid_t>> parent_and_child;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    std::getline(file, stat);  // where an iterator would throw if the process is gone by now
    const std::size_t after_name = stat.rfind(") ");  // the name itself may hold any character
    if (after_name == std::string::npos || stat.size() < after_name + 5) {
      continue;
    }
    parent_and_child.emplace_back(std::atoi(stat.c_str() + after_name + 4),
                                  std::atoi(name.c_str()));
  }
  std::vector<pid_t> found = {root};
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const auto& [parent, child] : parent_and_child) {
      if (parent == found[i]) {
        found.push_back(child);
      }
    }
  }
  found.erase(found.begin());
  return found;
}

/// Ends what a command left behind. This process adopts its orphans (see run_child), so everything
/// that still descends from it is such a rest, wherever a launcher put it.
void end_leftovers() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<pid_t> rest = descendants(getpid());
    if (rest.empty()) {
      return;
    }
    for (const pid_t pid : rest) {
      kill(pid, SIGKILL);
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
void watch(pid_t pid, double timeout_s, Interrupts& interrupts, const std::function<void()>& tick,
           ChildResult& result) {
  const Clock::time_point start = Clock::now();
  double give_up_s = timeout_s;
  bool asked_to_end = false;
  std::optional<ProcessEnd> end;
  while (!(end = poll_process(pid))) {
    const double elapsed_s = seconds_since(start);
    const bool interrupted_now = interrupts.requested() && !result.interrupted;
    if (asked_to_end && elapsed_s >= give_up_s) {
      for (const pid_t descendant : descendants(pid)) {
        kill(descendant, SIGKILL);
      }
      kill(-pid, SIGKILL);
      kill(pid, SIGKILL);  // it may have left its group
      give_up_s = elapsed_s + 1;
    } else if (!asked_to_end && (interrupted_now || elapsed_s >= give_up_s)) {
      result.interrupted = interrupted_now;
      result.timed_out = !interrupted_now;
      kill(-pid, SIGTERM);
      asked_to_end = true;
      give_up_s = elapsed_s + kGraceSeconds;
    }
    const double wait_s = std::max(0.001, give_up_s - seconds_since(start));
    interrupts.wait_for_child(tick ? std::min(wait_s, kTickSeconds) : wait_s);
    if (tick) {
      tick();
    }
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
  for (char& c : last) {
    c = static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
  }
  if (last.size() > kMaxReasonBytes) {
    last = last.substr(0, kMaxReasonBytes) + "...";
  }
  return last;
}

}  // namespace

bool Interrupts::requested() {
  wait_for_signal(0);
  return requested_;
}

void Interrupts::wait_for_child(double seconds) {
  const int signal = signals_.wait(seconds).si_signo;
  requested_ = requested_ || (signal > 0 && signal != SIGCHLD);
}

bool Interrupts::wait_for_signal(double seconds) {
  const bool came = signals_.wait(seconds, SIGCHLD).si_signo > 0;
  requested_ = requested_ || came;
  return came;
}

ChildResult run_child(const Command& command, const std::string& scratch, Interrupts& interrupts,
                      const std::function<void()>& tick) {
  ChildResult result;
  if (interrupts.requested()) {
    result.interrupted = true;
    return result;
  }
  // Orphans come to this process instead of init: torchrun gives each worker a session of its own,
  // so killing process groups would not reach them.
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  const std::string out_path = scratch + "/stdout";
  const std::string err_path = scratch + "/stderr";
  const Clock::time_point start = Clock::now();
  result.start_unix_ms =
      std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  try {
    const FileDescriptor out = open_output(out_path);
    const FileDescriptor err = open_output(err_path);
    StartOptions options;
    options.environment = environment_with({command.env.begin(), command.env.end()}, is_identity);
    options.cwd = command.cwd;
    options.out_fd = out.get();
    options.err_fd = err.get();
    options.parent_death_signal = SIGTERM;
    options.signal_mask = interrupts.original_mask();
    watch(start_process(command.argv, options), command.timeout_s, interrupts, tick, result);
  } catch (const CannotRun& error) {
    result.exit_code = kCannotRun;
    result.err = error.what();
    return result;
  } catch (const std::system_error& error) {
    throw Error(ExitCode::kTrainingFailed,
                "cannot start a process in " + scratch + ": " + error.code().message());
  }
  result.seconds = seconds_since(start);
  end_leftovers();
  result.out = read_tail(out_path);
  result.err = read_tail(err_path);
  return result;
}

std::string describe_failure(const ChildResult& result, double timeout_s) {
  std::string text;
  if (result.timed_out) {
    char buffer[64];
    std::snprintf(buffer, sizeof(buffer), "still running after %g s", timeout_s);
    text = buffer;
  } else if (result.signal != 0) {
    text = "killed by " + signal_name(result.signal);
  } else {
    text = "exit code " + std::to_string(result.exit_code);
  }
  std::string reason = reason_in(result.err);
  if (result.timed_out && reason.find("error:") == std::string::npos) {
    reason.clear();  // what a launcher says about having been stopped is not why it hung
  }
  return reason.empty() ? text : text + ": " + reason;
}

std::string shell_quote(const std::vector<std::string>& argv) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,/:@%";
  std::string line;
  for (const std::string& argument : argv) {
    line += line.empty() ? "" : " ";
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) {
      line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    line += '\'';
  }
  return line;
}

}  // namespace ddp::bench
