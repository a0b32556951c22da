// Starting a program: its environment, its end, and that no process of it is left.
#include "common/base/process.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/base/files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::CaptureResult;
using ddp::ChildOptions;

CaptureResult shell(const std::string& script, const ChildOptions& options = {},
                    double timeout_s = 60) {
  return ddp::CapturedChild({"sh", "-c", script}, options).wait(timeout_s);
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
  const CaptureResult loud =
      shell("head -c 9000000 /dev/zero >&2 & head -c 9000000 /dev/zero; wait");
  CHECK(loud.out.size() == 9000000);
  CHECK(loud.err.size() == 9000000);
  const CaptureResult beside = shell("for i in 1 2 3 4; do seq 20000 & done; wait");
  CHECK(std::ranges::count(beside.out, '\n') == 80000);
}

TEST_CASE("a program that cannot be run is told by its name and the reason") {
  for (const auto& [name, reason] : {std::pair<std::string, int>{"/nonexistent/program", ENOENT},
                                     {"no-such-program-anywhere", ENOENT},
                                     {"/etc/passwd", EACCES}}) {
    const std::vector<std::string> argv = {name};
    const auto said = message_of<ddp::CannotRun>([&argv] { ddp::Child child(argv); });
    CHECK(said == "cannot run " + name + ": " + std::strerror(reason));
  }
  CHECK_THROWS_AS(shell("true", {.cwd = "/nonexistent"}), ddp::CannotRun);
  CHECK(children_of(getpid()).empty());
}

TEST_CASE("it gets this environment with changes, an empty input, no blocked signal, our folder") {
  setenv("DDP_TEST_KEPT", "1", 1);
  setenv("DDP_TEST_LEFT_OUT", "1", 1);
  setenv("DDP_TEST_DROPPED", "1", 1);
  ChildOptions options;
  options.environment = ddp::environment_with(
      {{"DDP_TEST_NEW", "a=b"}, {"DDP_TEST_LEFT_OUT", std::nullopt}},
      [](std::string_view variable) { return variable.starts_with("DDP_TEST_D"); });
  const ddp::BlockedSignals blocked({SIGUSR1});
  std::signal(SIGPIPE, SIG_IGN);  // as every program, for itself
  CHECK(
      shell("env | grep ^DDP_TEST_ | sort; cat; grep -E 'Sig(Blk|Ign)' /proc/self/status", options)
          .out ==
      "DDP_TEST_KEPT=1\nDDP_TEST_NEW=a=b\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  const ddp::ScratchFolder folder("ddp-process-test");
  options.cwd = folder.path();
  CHECK(shell("pwd -P", options).out == shell("cd " + folder.path() + "; pwd -P").out);
}

TEST_CASE("at the timeout its whole group is killed, and what it said until then is kept") {
  const CaptureResult result = shell("sleep 1000 & echo $!; wait", {}, 0.5);
  CHECK(result.timed_out);
  CHECK(result.signal == SIGKILL);
  CHECK(all_gone_within({std::stoi(result.out)}, 20));
  // A program that closes its streams long before its end, and a program that ignores SIGTERM.
  CHECK(shell("exec >&- 2>&-; sleep 1000", {}, 0.5).timed_out);
  CHECK(shell("trap '' TERM; while :; do sleep 1; done", {}, 0.5).timed_out);
}

TEST_CASE("what is left behind in its group ends with it, also where it holds the output open") {
  for (const std::string closed : {">/dev/null 2>&1", ""}) {
    const CaptureResult result = shell("sleep 1000 " + closed + " & echo $!");
    CHECK(result.exit_code == 0);
    CHECK_FALSE(result.timed_out);
    CHECK(all_gone_within({std::stoi(result.out)}, 20));
  }
}

TEST_CASE("a child is asked about without waiting, and gone with its object") {
  pid_t pid = 0;
  {
    ddp::Child child({"sleep", "1000"});
    pid = child.pid();
    CHECK(getpgid(pid) == pid);
    CHECK_FALSE(child.poll());
  }
  CHECK(all_gone_within({pid}, 20));
  ddp::Child child({"sleep", "1000"});
  child.signal(SIGTERM);
  while (!child.poll()) {
  }
  CHECK(child.poll().value().signal == SIGTERM);
}

TEST_CASE("blocked signals are waited for, with a time limit") {
  const ddp::BlockedSignals signals({SIGUSR1, SIGUSR2});
  CHECK(signals.wait(0).si_signo == 0);
  raise(SIGUSR2);
  CHECK(signals.wait(std::nullopt).si_signo == SIGUSR2);
}

TEST_CASE("a next file has a name that nobody else knows, whatever lies beside it", "[files]") {
  namespace fs = std::filesystem;
  const ddp::ScratchFolder folder("ddp-process-test");
  const std::string path = folder.path() + "/file";
  const std::string guessed = path + ".tmp." + std::to_string(getpid());
  const std::string precious = folder.path() + "/precious";
  ddp::replace_file("file", precious, "kept");
  const std::vector<std::function<void()>> plants = {
      [] {}, [&] { fs::create_symlink(precious, guessed); }, [&] { fs::create_directory(guessed); },
      [&] { mkfifo(guessed.c_str(), 0666); }};
  for (const auto& plant : plants) {
    fs::remove(guessed);
    plant();
    const auto before = std::distance(fs::directory_iterator(folder.path()), {});
    ddp::NextFile one("file", path, 3);
    ddp::NextFile other("file", path, 5);  // of a program with the same process id
    one.write("one");
    other.write("other");
    one.take_place(/*keep_old=*/true);  // there is none
    CHECK(ddp::read_text(path) == "one");
    other.take_place(/*keep_old=*/false);
    CHECK(ddp::read_text(path) == "other");
    CHECK(ddp::read_text(precious) == "kept");
    ddp::NextFile("file", path, 4).write("left");
    fs::remove(path);
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == before);
  }
}
