#include "bench/child.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>

#include "common/base/parse.hpp"
#include "common/meet/launch.hpp"

namespace ddp::bench {
namespace {

/// True for variables that mislead the Python of torchrun and of the peers.
bool misleads_python(std::string_view variable) {
  return variable.starts_with("PYTHONPATH=") || variable.starts_with("PYTHONHOME=") ||
         variable.starts_with("PYTHONSAFEPATH=");
}

/// Kills processes that a command left behind. The children of a killed process become children of
/// this process, so the next round finds them.
void end_leftovers() {
  for (int round = 0; round < 500; ++round) {
    std::ifstream children("/proc/thread-self/children");
    for (pid_t pid = 0; children >> pid;) {
      kill(pid, SIGKILL);
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void watch(Child& child, double timeout_s, Session& session, ChildResult& result) {
  const auto start = std::chrono::steady_clock::now();
  Patience patience{std::chrono::duration<double>(timeout_s)};
  bool asked_to_end = false;
  std::optional<ProcessEnd> end;
  while (!(end = child.poll())) {
    const bool late = patience.is_over();
    if (asked_to_end && late) {
      child.signal(SIGKILL);
    } else if (!asked_to_end && (late || session.interrupted)) {
      result.timed_out = late;
      result.interrupted = !late;
      child.signal(SIGTERM);
      asked_to_end = true;
      patience = Patience(std::chrono::seconds(5));  // then SIGKILL
    }
    session.wait(0.5);
    session.gpus.sample();
  }
  static_cast<ProcessEnd&>(result) = *end;
  result.seconds = seconds_since(start);
}

/// First line of `err` with an error, else the last: launchers print pages of text around it. With
/// the rank, where the shell of --program has named it.
std::string reason_in(const std::string& err) {
  std::string reason;
  std::string rank;
  bool is_found = false;
  for (const std::string& line : split(err, '\n')) {
    if (line.starts_with("error: rank ")) {
      rank = rank.empty() ? line.substr(std::strlen("error: ")) : rank;
    } else if (!is_found && line.find_first_not_of(" \t\r-=*") != std::string::npos &&
               !line.starts_with("bench: error: rank ")) {  // of kStartRanks, without a reason
      reason = line;
      is_found = line.starts_with("/bin/sh: ") || line.find("rror:") != std::string::npos;
    }
  }
  return printable(shorten(rank + (rank.empty() || reason.empty() ? "" : ": ") + reason));
}

}  // namespace

std::string ChildResult::failure() const {
  const std::string end = timed_out
                              ? fmt::format("still running after {:.0f} s, see --timeout", seconds)
                          : interrupted ? "interrupted"
                          : signal != 0 ? "killed by " + signal_name(signal)
                                        : fmt::format("exit code {}", exit_code);
  const std::string reason = timed_out ? "" : reason_in(err);
  return reason.empty() ? end : end + ": " + reason;
}

ChildResult run_child(const Command& command, Session& session) {
  ChildResult result;
  if (session.interrupted) {
    result.interrupted = true;
    return result;
  }
  // Orphans become children of this process instead of init's: torchrun gives each worker its own
  // session, which a signal to the process group does not reach.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  result.started = std::time(nullptr);
  result.start_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  const auto is_dropped = [&](std::string_view variable) {
    return is_identity_variable(variable) || (!command.is_users && misleads_python(variable));
  };
  const ChildOptions options = {.environment = environment_with(command.env, is_dropped),
                                .cwd = command.cwd,
                                .parent_death_signal = SIGTERM,
                                .signal_mask = session.signals.original()};
  try {
    CapturedChild captured(command.argv, options);
    watch(captured.child(), command.timeout_s, session, result);
    end_leftovers();
    result.out = captured.out();
    result.err = captured.err();
  } catch (const CannotRun& error) {
    result.exit_code = kCannotRunExitCode;
    result.err = error.what();
  }
  return result;
}

}  // namespace ddp::bench
