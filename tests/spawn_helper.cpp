// tests/spawn_helper.cpp - a stage without training: each rank does what RANK<r> (or ALL) in the
// environment says.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/launch/spawn.hpp"

namespace {

volatile std::sig_atomic_t last_signal = 0;
volatile std::sig_atomic_t signal_count = 0;

void remember(int signal) {
  last_signal = signal;
  signal_count = signal_count + 1;
}

[[noreturn]] void sleep_long() {
  std::this_thread::sleep_for(std::chrono::seconds(100));
  std::_Exit(99);
}

/// Stops like training: ends its step, "saves", asks to be rerun. Prints how often it was asked.
void stop_when_asked(int rank) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    std::signal(signal, remember);
  }
  std::cout << "rank " + std::to_string(rank) + " ready\n" << std::flush;
  for (int i = 0; i < 2000 && last_signal == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  std::cout << "rank " + std::to_string(rank) + " got signal " + std::to_string(last_signal) +
                   " x" + std::to_string(signal_count) + "\n"
            << std::flush;
  throw ddp::Error(ddp::ExitCode::kRunAgain, "stopped with a good snapshot");
}

/// Each adds a byte to the file they all inherited, and waits until it holds as many as there are
/// ranks.
void meet(const ddp::LaunchEnvironment& environment) {
  const int store = environment.store.fd;
  struct stat status {};
  // They share the offset, too, and in a file without a name the kernel does not lock it: two that
  // write at once would write over each other.
  if (environment.world_size > 1 && fcntl(store, F_SETFL, O_APPEND) != 0) {
    throw std::runtime_error("fcntl failed");
  }
  if (environment.world_size > 1 && write(store, "r", 1) != 1) {
    throw std::runtime_error("write failed");
  }
  while (environment.world_size > 1 && status.st_size < environment.world_size) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (fstat(store, &status) != 0) {
      throw std::runtime_error("fstat failed");
    }
  }
  if (environment.rank == 0) {
    std::cout << "all met\n";
  }
}

void wait_for(const std::string& file) {
  while (access(file.c_str(), F_OK) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void make(const std::string& file) {
  close(open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

/// In the folder $MEET: fails, and lets the others see it as long before it ends as they need.
[[noreturn]] void fail_in_sight(const std::string& folder) {
  ddp::at_train_end([folder] {
    make(folder + "/left");
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  });
  throw std::runtime_error("the cause");
}

/// In the folder $MEET: fails because another one did.
[[noreturn]] void fail_after(const std::string& folder) {
  wait_for(folder + "/left");
  throw std::runtime_error("somebody left");
}

/// In the folder $MEET: is aborted because another one failed, as a library may do it.
[[noreturn]] void abort_after(const std::string& folder) {
  wait_for(folder + "/left");
  std::abort();
}

/// In the folder $MEET: keeps the parent from looking, as a busy machine may do, until two ranks
/// have ended.
[[noreturn]] void hold_parent(const std::string& folder) {
  kill(getppid(), SIGSTOP);
  while (ddp::process_state(getppid()) != 'T') {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  make(folder + "/held");
  while (ddp::ending_children_of(getppid()).size() < 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(getppid(), SIGCONT);
  sleep_long();
}

/// In the folder $MEET: ends without a word, as a library may do it.
[[noreturn]] void vanish(const std::string& folder, int code) {
  flock(open(folder.c_str(), O_RDONLY | O_CLOEXEC), LOCK_EX);
  make(folder + "/left");
  std::_Exit(code);
}

/// In the folder $MEET: fails because another one vanished: the kernel has closed its files.
[[noreturn]] void fail_without(const std::string& folder) {
  wait_for(folder + "/left");
  flock(open(folder.c_str(), O_RDONLY | O_CLOEXEC), LOCK_SH);
  throw std::runtime_error("somebody left");
}

/// In the folder $MEET: names itself, and is killed by a signal once it is watched.
[[noreturn]] void die_in_sight(const std::string& folder) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  std::ofstream(folder + "/pid.new") << getpid() << '\n';
  rename((folder + "/pid.new").c_str(), (folder + "/pid").c_str());
  wait_for(folder + "/watched");
  raise(SIGKILL);
  std::abort();
}

/// In the folder $MEET: fails because that one died, and keeps its parent from knowing for a while,
/// which a busy kernel may do too: a process that is traced ends for its tracer first.
[[noreturn]] void notice_death(const std::string& folder) {
  pid_t victim = 0;
  while (!(std::ifstream(folder + "/pid") >> victim)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (ptrace(PTRACE_SEIZE, victim, nullptr, nullptr) != 0) {
    throw std::runtime_error("cannot trace the other rank");
  }
  make(folder + "/watched");
  siginfo_t ended{};
  waitid(P_PID, static_cast<id_t>(victim), &ended, WEXITED | WNOWAIT | __WALL);
  ddp::at_train_end([victim] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    waitpid(victim, nullptr, __WALL);
  });
  throw std::runtime_error("somebody left");
}

void act(const ddp::Options&, const ddp::LaunchEnvironment& environment) {
  const std::string own = "RANK" + std::to_string(environment.rank);
  const char* action = std::getenv(own.c_str());
  action = action != nullptr ? action : std::getenv("ALL");
  const std::string what = action == nullptr ? "done" : action;
  if (std::getenv("HELD") != nullptr && what != "hold_parent") {
    wait_for(std::getenv("HELD"));
  }
  if (what == "done") {
    std::cout << "rank " + std::to_string(environment.rank) + " of " +
                     std::to_string(environment.world_size) + " done\n";
  } else if (what == "pid") {
    std::cout << "pid " + std::to_string(getpid()) + " ready\n" << std::flush;
    sleep_long();
  } else if (what == "sleep") {
    sleep_long();
  } else if (what == "stubborn") {
    std::signal(SIGTERM, SIG_IGN);
    std::cout << "rank " + std::to_string(environment.rank) + " ready\n" << std::flush;
    sleep_long();
  } else if (what == "meet") {
    meet(environment);
  } else if (what == "mask") {
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, nullptr, &blocked);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1}) {
      if (sigismember(&blocked, signal) != 0) {
        throw std::runtime_error("signal " + std::to_string(signal) + " is blocked");
      }
    }
  } else if (what == "stop") {
    stop_when_asked(environment.rank);
  } else if (what == "throw") {
    throw std::runtime_error("the message\nand a backtrace");
  } else if (what == "fail_in_sight") {
    fail_in_sight(std::getenv("MEET"));
  } else if (what == "fail_after") {
    fail_after(std::getenv("MEET"));
  } else if (what == "abort_after") {
    abort_after(std::getenv("MEET"));
  } else if (what == "hold_parent") {
    hold_parent(std::getenv("MEET"));
  } else if (what == "die_in_sight") {
    die_in_sight(std::getenv("MEET"));
  } else if (what == "notice_death") {
    notice_death(std::getenv("MEET"));
  } else if (what == "fail_without") {
    fail_without(std::getenv("MEET"));
  } else if (what == "vanish0") {
    vanish(std::getenv("MEET"), 0);
  } else if (what == "vanish7") {
    vanish(std::getenv("MEET"), 7);
  } else if (what == "broken") {
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    close(ends[1]);
    if (write(ends[0], "x", 1) >= 0 || errno != EPIPE) {
      throw std::runtime_error("a broken connection was written to");
    }
    throw std::runtime_error("the connection is broken");
  } else if (what == "chatter") {
    std::cout << std::string(1000000, 'x') << std::flush;
    throw std::runtime_error("nobody reads, and this goes on");
  } else if (what == "shout") {
    throw std::runtime_error(std::string(1000000, 'x'));
  } else if (what == "usage") {
    throw ddp::UsageError("got 1, expected 2");
  } else if (what == "snapshot") {
    throw ddp::Error(ddp::ExitCode::kSnapshotRefused, "damaged");
  } else if (what == "again") {
    throw ddp::Error(ddp::ExitCode::kRunAgain, "stopped with a good snapshot");
  } else if (what == "number") {
    throw 7;  // NOLINT: not an std::exception, and still one line
  } else if (what == "thread_throws") {
    std::thread([] { throw std::runtime_error("a thread's message\nand a backtrace"); }).join();
  } else if (what == "thread_refuses") {
    std::thread([] { throw ddp::UsageError("got 1\n, expected 2"); }).join();
  } else if (what == "main_then_thread") {
    ddp::at_train_end(
        [] { std::thread([] { throw std::runtime_error("what is taken apart"); }).join(); });
    throw ddp::TransientError("gone, expected it there");
  } else if (what == "abort") {
    std::abort();
  } else if (what == "print") {
    std::printf("buffered by C");
    std::cout << ", buffered by C++";
  } else {
    throw std::runtime_error("unknown action " + what);
  }
}

/// Starts ranks again and again, and says what this process has before and after.
int start_in_cycles(int argc, char** argv) {
  const auto describe = [] {
    const auto count = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), {});
    };
    std::ifstream list("/proc/thread-self/children");
    const auto children = std::distance(std::istream_iterator<int>(list), {});
    int64_t pages = 0;
    std::ifstream statm("/proc/self/statm");
    statm >> pages >> pages;
    std::cout << "descriptors " << count("/proc/self/fd") << " children " << children << " rss_kib "
              << pages * (sysconf(_SC_PAGESIZE) / 1024) << '\n'
              << std::flush;
  };
  const int cycles = std::atoi(std::getenv("CYCLES"));
  for (int i = 0; i < cycles; ++i) {
    if (i == 1) {
      describe();  // what the first start sets up once stays
    }
    if (const int code = ddp::start_ranks("spawn_helper", {argv, argv + argc}, 2); code != 0) {
      return code;
    }
  }
  describe();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const how = std::getenv("HOW");
  const std::string mode = how == nullptr ? "spawn" : how;
  if (mode == "cycles" && std::getenv("DDP_LAUNCHER") == nullptr) {
    return start_in_cycles(argc, argv);
  }
  return mode == "alone"  ? ddp::run_alone(argc, argv, act)
         : mode == "rank" ? ddp::run_rank(argc, argv, act)
                          : ddp::spawn(argc, argv, act);
}
