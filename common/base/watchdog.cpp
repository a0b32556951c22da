#include "common/base/watchdog.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/base/sleep.hpp"

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
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// The clock is read here, not by the watched calls: a call is as old as the first look at it, so
/// what is called late is late by up to one interval more.
void Watchdog::run(const std::stop_token& stop) {
  const std::chrono::milliseconds interval =
      std::clamp(std::min(slow_after_, timeout_) / 4, kShortestInterval, kLongestInterval);
  uint64_t seen = 0;
  Clock::time_point since{};
  bool told_slow = false;
  bool told_late = false;
  Clock::time_point last_look = Clock::now();
  while (sleep_unless_stopped(stop, interval)) {
    // A process that was stopped, by SIGSTOP or a debugger, could not get further.
    const auto slept = Clock::now() - std::exchange(last_look, Clock::now());
    since += slept > 2 * interval + kLongestInterval ? slept : Clock::duration::zero();
    const uint64_t call = calls_.load(std::memory_order_acquire);
    if (call != seen || call % 2 == 0) {
      seen = call;
      since = Clock::now();
      told_slow = told_late = false;
      continue;
    }
    const auto age = Clock::now() - since;
    if (age >= std::min(slow_after_, timeout_) && !told_slow) {
      told_slow = true;
      on_slow_();
    }
    if (age >= timeout_ && !told_late) {
      told_late = true;
      on_late_(call);
    }
  }
}

}  // namespace ddp
