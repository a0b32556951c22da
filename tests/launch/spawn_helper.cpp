// tests/launch/spawn_helper.cpp - a stage without training: each rank acts as the variable RANK<r>
// or ALL says.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "common/base/process_exit.hpp"
#include "common/base/signals.hpp"
#include "common/launch/spawn.hpp"

namespace {

using ddp::ExitCode;

[[noreturn]] void sleep_long() {
  std::this_thread::sleep_for(std::chrono::seconds(100));
  std::_Exit(99);
}

void say(const ddp::LaunchEnvironment& rank, const std::string& text) {
  std::cout << "rank " + std::to_string(rank.rank) + " " + text + "\n" << std::flush;
}

/// Acts like training: ends its step, "saves", asks to be run again.
ExitCode stop_when_asked(const ddp::LaunchEnvironment& rank) {
  ddp::watch_for_stop_request();
  say(rank, "ready");
  for (int i = 0; i < 2000 && ddp::stop_request() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  say(rank, "got signal " + std::to_string(ddp::stop_request()));
  return ExitCode::kRunAgain;
}

/// Adds a byte to the store's file, and waits until it has a byte of each rank.
void meet(const ddp::LaunchEnvironment& rank) {
  std::ofstream(rank.store.file, std::ios::app) << 'r' << std::flush;
  while (std::ifstream(rank.store.file, std::ios::ate).tellg() < rank.world_size) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (rank.rank == 0) {
    std::cout << "all met at " + rank.store.file + "\n";
  }
}

void write_to_broken_connection() {
  std::array<int, 2> ends{};
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data());
  close(ends[1]);
  if (write(ends[0], "x", 1) >= 0 || errno != EPIPE) {
    throw std::logic_error("a broken connection was written to");
  }
  throw std::runtime_error("the connection is broken");
}

void check_mask() {
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1}) {
    if (sigismember(&blocked, signal) != 0) {
      throw std::runtime_error("signal " + std::to_string(signal) + " is blocked");
    }
  }
}

ExitCode act(const ddp::Options& options, const ddp::LaunchEnvironment& rank) {
  const auto run_in_thread = [](const std::function<void()>& body) { std::thread(body).join(); };
  ExitCode code = ExitCode::kDone;
  const std::map<std::string, std::function<void()>> actions = {
      {"done", [&] { say(rank, "of " + std::to_string(rank.world_size) + " done"); }},
      {"batch", [&] { say(rank, "batch " + std::to_string(options.batch_size)); }},
      {"sleep", [&] { say(rank, "ready"), sleep_long(); }},
      {"stubborn", [&] { std::signal(SIGTERM, SIG_IGN), say(rank, "ready"), sleep_long(); }},
      {"stop", [&] { code = stop_when_asked(rank); }},
      {"give_up", [&] { stop_when_asked(rank), throw std::runtime_error("the message"); }},
      {"hangup", [&] { std::signal(SIGHUP, SIG_DFL), code = stop_when_asked(rank); }},
      {"meet", [&] { meet(rank); }},
      {"mask", check_mask},
      {"broken", write_to_broken_connection},
      {"throw", [] { throw std::runtime_error("the message\nand a backtrace"); }},
      {"usage", [] { throw ddp::UsageError("got 1\n, expected 2"); }},
      {"transient", [] { throw ddp::TransientError("gone, expected it there"); }},
      {"snapshot", [] { throw ddp::Error(ExitCode::kSnapshotRefused, "damaged"); }},
      {"silent", [] { throw ddp::Error(ExitCode::kTrainingFailed, ""); }},
      {"number", [] { throw 7; }},  // not an std::exception, and still one line
      {"thread", [&] { run_in_thread([] { throw std::runtime_error("a thread's"); }); }},
      {"explained",
       [&] {
         ddp::explain_thread_errors([](const std::string& what) { return what + ", explained"; });
         run_in_thread([] { throw ddp::TransientError("a thread's"); });
       }},
      {"late",
       [] {
         ddp::at_train_end([] { std::cerr << "at the end\n"; }), throw ddp::UsageError("first");
       }},
      {"abort", [] { std::abort(); }},
      {"exit7", [] { std::_Exit(7); }},
      {"print", [] { std::printf("buffered by C"), std::cout << ", buffered by C++"; }},
  };
  const char* const own = std::getenv(("RANK" + std::to_string(rank.rank)).c_str());
  const char* const all = std::getenv("ALL");
  const std::string what = own != nullptr ? own : all != nullptr ? all : "done";
  if (what == "again") {
    return ExitCode::kRunAgain;
  }
  actions.at(what)();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const how = std::getenv("HOW");
  const std::string mode = how == nullptr ? "spawn" : how;
  const auto act_alone = [](const ddp::Options& options) { return act(options, {}); };
  return mode == "alone"  ? ddp::run_alone(argc, argv, act_alone)
         : mode == "rank" ? ddp::run_rank(argc, argv, act)
                          : ddp::spawn(argc, argv, act);
}
