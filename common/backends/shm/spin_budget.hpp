// common/backends/shm/spin_budget.hpp - how long a rank looks for a peer before it sleeps.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ddp::shm {

/// Note [Spin or sleep]. A peer that is late by less than a sleep and a wake-up take is best waited
/// for by spinning, and two ranks of which one slept are in step again once the other's spin
/// outlasts that wake-up: so a wait may spin for twice the wake-ups that were seen. A peer that is
/// later is often one that wants this very processor, with more ranks than processors or other
/// programs beside them. So spins that found nobody may take one part in 32 of the time; once that
/// is spent, a wait sleeps after kBriefly_ns. What was spent comes back with time, whatever happens
/// meanwhile: ranks that have begun to sleep spin again after the time of 32 spins.
///
/// Nothing here knows of processors, clocks or threads: a test runs it on a time of its own.
class SpinBudget {
 public:
  /// @param now_ns of any clock that only advances @return how long to spin now
  int64_t limit_ns(int64_t now_ns) noexcept {
    left_ns_ = std::min(kMostSpins * full_ns_, left_ns_ + (now_ns - last_ns_) / kShare);
    last_ns_ = now_ns;
    return left_ns_ >= full_ns_ ? full_ns_ : kBriefly_ns;
  }
  /// A spin of that length found nobody. A brief one is free: short steps in which every wait
  /// sleeps would else spend what they earn.
  void spun_in_vain(int64_t limit_ns) noexcept {
    if (limit_ns > kBriefly_ns) {
      left_ns_ -= std::min(left_ns_, limit_ns);
    }
  }
  /// A sleep ended so long after the peer had come.
  void woken_after(int64_t latency_ns) noexcept {
    const int64_t seen_ns = std::clamp<int64_t>(latency_ns, 0, kLongest_ns);
    wake_up_ns_ += (seen_ns - wake_up_ns_) / 8;  // a mean of the last ones
    full_ns_ = std::clamp(2 * wake_up_ns_, kShortest_ns, kLongest_ns);
  }

  static constexpr int64_t kShare = 32;  ///< full spins in vain take at most 1 / kShare of the time
  static constexpr int64_t kBriefly_ns = 2'000;

 private:
  // Limits of a full spin. Wake-ups take 5 us where processors stay awake, 100 us in virtual
  // machines.
  static constexpr int64_t kShortest_ns = 100'000;
  static constexpr int64_t kLongest_ns = 1'000'000;
  static constexpr int64_t kMostSpins = 16;  ///< that may be left, after however long a time

  int64_t wake_up_ns_ = 100'000;
  int64_t full_ns_ = 200'000;
  int64_t left_ns_ = kMostSpins * full_ns_;
  int64_t last_ns_ = 0;
};

}  // namespace ddp::shm
