// tests/spawn_helper.cpp - a stage without training: each rank does what RANK<r> (or ALL) in the
// environment says.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "common/base/exit_codes.hpp"
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

/// Rank 0 accepts on the socket it inherited, the others connect to MASTER_ADDR:MASTER_PORT.
void meet(const ddp::LaunchEnvironment& environment) {
  if (environment.rank == 0) {
    for (int peer = 1; peer < environment.world_size; ++peer) {
      if (accept(environment.store.listen_fd, nullptr, nullptr) < 0) {
        throw std::runtime_error("accept failed");
      }
    }
    std::cout << "all met\n";
    return;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(environment.store.port));
  inet_pton(AF_INET, environment.store.host.c_str(), &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("connect failed");
  }
}

void act(const ddp::Options&, const ddp::LaunchEnvironment& environment) {
  const std::string own = "RANK" + std::to_string(environment.rank);
  const char* action = std::getenv(own.c_str());
  action = action != nullptr ? action : std::getenv("ALL");
  const std::string what = action == nullptr ? "done" : action;
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
  } else if (what == "usage") {
    throw ddp::UsageError("got 1, expected 2");
  } else if (what == "snapshot") {
    throw ddp::Error(ddp::ExitCode::kSnapshotRefused, "damaged");
  } else if (what == "again") {
    throw ddp::Error(ddp::ExitCode::kRunAgain, "stopped with a good snapshot");
  } else if (what == "number") {
    throw 7;  // NOLINT: not an std::exception, and still one line
  } else if (what == "abort") {
    std::abort();
  } else if (what == "print") {
    std::printf("buffered by C");
    std::cout << ", buffered by C++";
  } else {
    throw std::runtime_error("unknown action " + what);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* const how = std::getenv("HOW");
  const std::string mode = how == nullptr ? "spawn" : how;
  return mode == "alone"  ? ddp::run_alone(argc, argv, act)
         : mode == "rank" ? ddp::run_rank(argc, argv, act)
                          : ddp::spawn(argc, argv, act);
}
