#include "common/backends/mpi/watchdog.hpp"

#include <algorithm>
#include <csignal>

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLongestInterval{200};
constexpr std::chrono::milliseconds kShortestInterval{5};

}  // namespace

Watchdog::Watchdog(std::chrono::milliseconds slow_after, std::chrono::milliseconds timeout,
                   std::function<void()> on_slow, std::function<void(uint64_t)> on_late)
    : slow_after_(slow_after),
      timeout_(timeout),
      on_slow_(std::move(on_slow)),
      on_late_(std::move(on_late)) {
  // Signals are for the threads that expect them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

/// The clock is read here, not by the watched calls: a call is as old as the first look at it, so
/// what is called late is late by up to one interval more.
void Watchdog::run() {
  const std::chrono::milliseconds interval =
      std::clamp(std::min(slow_after_, timeout_) / 4, kShortestInterval, kLongestInterval);
  uint64_t seen = 0;
  Clock::time_point since{};
  bool told_slow = false;
  bool told_late = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(lock, interval, [this] { return stopping_; })) {
    const uint64_t call = calls_.load(std::memory_order_acquire);
    if (call != seen || call % 2 == 0) {
      seen = call;
      since = Clock::now();
      told_slow = told_late = false;
      continue;
    }
    lock.unlock();
    const auto age = Clock::now() - since;
    if (age >= std::min(slow_after_, timeout_) && !told_slow) {
      told_slow = true;
      on_slow_();
    }
    if (age >= timeout_ && !told_late) {
      told_late = true;
      on_late_(call);
    }
    lock.lock();
  }
}

}  // namespace ddp
