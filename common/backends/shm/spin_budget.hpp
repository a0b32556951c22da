// common/backends/shm/spin_budget.hpp - time for which a rank spins for a peer before it sleeps.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ddp::shm {

/// Note [Spin or sleep]. If a peer is late by less than a sleep and a wake-up take, spinning is
/// better than sleeping. After one of two ranks has slept, they are in step again once the other's
/// spin is longer than that wake-up. So a wait may spin for twice the mean wake-up. A peer that is
/// later often needs this very processor, because there are more ranks than processors, or other
/// programs. So spins that find nobody may take at most 1/32 of the time. Once that budget is
/// spent, a wait sleeps after kBriefly_ns. The budget grows with time: ranks that have begun to
/// sleep spin again after the time of 32 spins. The class reads no clock: a test brings its own.
class SpinBudget {
 public:
  /// @param now_ns time of any clock that only advances @return time to spin now
  int64_t limit_ns(int64_t now_ns) noexcept {
    left_ns_ = std::min(kMostSpins * full_ns_, left_ns_ + (now_ns - last_ns_) / kShare);
    last_ns_ = now_ns;
    return left_ns_ >= full_ns_ ? full_ns_ : kBriefly_ns;
  }
  /// Pays for a spin of that length that found nobody. Brief spins are free: else the budget of
  /// short steps in which every wait sleeps would never grow.
  void spin_failed(int64_t limit_ns) noexcept {
    if (limit_ns > kBriefly_ns) {
      left_ns_ -= std::min(left_ns_, limit_ns);
    }
  }
  /// Takes the time from the peer's arrival to the end of the sleep.
  void woken_after(int64_t latency_ns) noexcept {
    const int64_t seen_ns = std::clamp<int64_t>(latency_ns, 0, kLongest_ns);
    wake_up_ns_ += (seen_ns - wake_up_ns_) / 8;  // moving mean
    full_ns_ = std::clamp(2 * wake_up_ns_, kShortest_ns, kLongest_ns);
  }

  static constexpr int64_t kShare = 32;  ///< long spins that find nobody take at most 1 / kShare
  static constexpr int64_t kBriefly_ns = 2'000;

 private:
  // Limits of a long spin. Wake-ups take 5 us where processors stay awake, 100 us in virtual
  // machines.
  static constexpr int64_t kShortest_ns = 100'000;
  static constexpr int64_t kLongest_ns = 1'000'000;
  static constexpr int64_t kMostSpins = 16;  ///< upper limit of the budget

  int64_t wake_up_ns_ = 100'000;
  int64_t full_ns_ = 200'000;
  int64_t left_ns_ = kMostSpins * full_ns_;
  int64_t last_ns_ = 0;
};

}  // namespace ddp::shm
