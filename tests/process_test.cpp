// Starting a program: what it gets, how its end is told, and that nothing of it is left.
#include "common/base/process.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/processes.hpp"

namespace {

using ddp::CaptureOptions;
using ddp::CaptureResult;
using ddp::run_captured;

CaptureResult shell(const std::string& script, const CaptureOptions& options = {}) {
  return run_captured({"sh", "-c", script}, options);
}

}  // namespace

TEST_CASE("what a program prints, its exit code or the signal that ended it") {
  const CaptureResult result = shell("echo out; echo err >&2; exit 3");
  CHECK(result.out == "out\n");
  CHECK(result.err == "err\n");
  CHECK(result.exit_code == 3);
  CHECK(result.signal == 0);
  const CaptureResult killed = shell("kill -9 $$");
  CHECK(killed.exit_code == -1);
  CHECK(ddp::signal_name(killed.signal) == "signal 9 (Killed)");
  CaptureOptions options;
  options.merge = true;
  CHECK(shell("echo out; echo err >&2; echo out", options).out == "out\nerr\nout\n");
}

TEST_CASE(
    "a program that cannot be run is told by its name and the reason, and leaves no process") {
  for (const auto& [name, reason] : {std::pair<std::string, int>{"/nonexistent/program", ENOENT},
                                     {"no-such-program-anywhere", ENOENT},
                                     {"/etc/passwd", EACCES}}) {
    try {
      ddp::start_process({name});
      FAIL(name << " was started");
    } catch (const ddp::CannotRun& error) {
      CHECK(error.code().value() == reason);
      CHECK(std::string(error.what()).starts_with("cannot run " + name + ": "));
    }
  }
  CaptureOptions options;
  options.start.cwd = "/nonexistent";
  CHECK_THROWS_AS(shell("true", options), ddp::CannotRun);
  CHECK(ddp::test::children_of(getpid()).empty());
}

TEST_CASE("it gets this environment with changes, an empty input, no blocked signal, our folder") {
  setenv("DDP_TEST_KEPT", "1", 1);
  setenv("DDP_TEST_LEFT_OUT", "1", 1);
  setenv("DDP_TEST_DROPPED", "1", 1);
  CaptureOptions options;
  options.start.environment = ddp::environment_with(
      {{"DDP_TEST_NEW", "a=b"}, {"DDP_TEST_LEFT_OUT", std::nullopt}},
      [](std::string_view variable) { return variable.starts_with("DDP_TEST_D"); });
  const ddp::BlockedSignals blocked({SIGUSR1});
  CHECK(shell("env | grep ^DDP_TEST_ | sort; cat; grep SigBlk /proc/self/status", options).out ==
        "DDP_TEST_KEPT=1\nDDP_TEST_NEW=a=b\nSigBlk:\t0000000000000000\n");
  const ddp::ScratchFolder folder("ddp-process-test");
  options.start.cwd = folder.path();
  CHECK(shell("pwd -P", options).out == shell("cd " + folder.path() + "; pwd -P").out);
}

TEST_CASE("at the timeout its whole group is killed, and what it said until then is kept") {
  CaptureOptions options;
  options.timeout_s = 0.5;
  const CaptureResult result = shell("sleep 1000 & echo $!; wait", options);
  CHECK(result.timed_out);
  CHECK(result.signal == SIGKILL);
  CHECK(result.seconds < 30);
  CHECK(ddp::test::all_gone_within({std::stoi(result.out)}, 20));
  // The streams are closed long before the end, and a request to end would be ignored.
  CHECK(shell("exec >&- 2>&-; sleep 1000", options).timed_out);
  CHECK(shell("trap '' TERM; while :; do sleep 1; done", options).timed_out);
}

TEST_CASE("what is left behind in its group ends with it, also where it holds the output open") {
  for (const std::string closed : {">/dev/null 2>&1", ""}) {
    const CaptureResult result = shell("sleep 1000 " + closed + " & echo $!");
    CHECK(result.exit_code == 0);
    CHECK_FALSE(result.timed_out);
    CHECK(ddp::test::all_gone_within({std::stoi(result.out)}, 20));
  }
}

TEST_CASE("output beyond the limit is read and dropped, on both streams at once") {
  const CaptureResult result =
      shell("head -c 70000000 /dev/zero >&2 & head -c 70000000 /dev/zero; wait");
  CHECK(result.exit_code == 0);
  CHECK(result.out.size() == std::size_t{64} << 20);
  CHECK(result.err.size() == std::size_t{64} << 20);
}

TEST_CASE("a process that runs is asked about without waiting, until it has been reaped") {
  const pid_t pid = ddp::start_process({"sleep", "1000"});
  CHECK(getpgid(pid) == pid);
  CHECK_FALSE(ddp::poll_process(pid));
  const auto becomes = [pid](const std::string& states) {
    for (int i = 0; i < 2000 && states.find(ddp::process_state(pid)) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return states.find(ddp::process_state(pid)) != std::string::npos;
  };
  CHECK(becomes("RS"));
  kill(pid, SIGSTOP);
  CHECK(becomes("T"));
  kill(pid, SIGCONT);
  CHECK(becomes("RS"));
  CHECK(ddp::ending_children_of(getpid()).empty());
  kill(pid, SIGTERM);
  CHECK(becomes("Z"));
  CHECK(ddp::ending_children_of(getpid()) == std::vector<pid_t>{pid});
  CHECK(ddp::test::all_gone_within({pid}, 20));
  CHECK(ddp::poll_process(pid).value().signal == SIGTERM);
  CHECK(ddp::process_state(pid) == 0);
  CHECK_THROWS_AS(ddp::poll_process(pid), std::system_error);
}

TEST_CASE("blocked signals are waited for, with a time limit, and one may be left pending") {
  const ddp::BlockedSignals signals({SIGUSR1, SIGUSR2});
  CHECK(signals.wait(0).si_signo == 0);
  raise(SIGUSR2);
  CHECK(signals.wait(0.01, SIGUSR2).si_signo == 0);
  const siginfo_t info = signals.wait(std::nullopt);
  CHECK(info.si_signo == SIGUSR2);
  CHECK(info.si_pid == getpid());
}

TEST_CASE("programs are found in PATH, and only what can be executed") {
  const ddp::ScratchFolder folder("ddp-process-test");
  std::ofstream(folder.path() + "/tool") << "no program\n";
  const std::string before = getenv("PATH");
  setenv("PATH", (folder.path() + ":" + before).c_str(), 1);
  CHECK_FALSE(ddp::find_in_path("tool"));
  CHECK(ddp::find_in_path("sh"));
  CHECK(shell("chmod +x " + folder.path() + "/tool").exit_code == 0);
  CHECK(ddp::find_in_path("tool") == folder.path() + "/tool");
  setenv("PATH", before.c_str(), 1);
}
