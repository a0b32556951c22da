// tests/support/futex_waits.hpp - how often threads sleep for one another, and how late they wake.
#pragma once

#include <chrono>
#include <cstdint>

namespace ddp::test {

/// How often this thread has slept on a futex through syscall(). A program that uses this links
/// futex_waits.cpp, which replaces that function.
uint64_t futex_waits();

/// While one lives, whoever is woken there by another thread goes on only so much later, as in a
/// virtual machine whose processors must be fetched first.
class SlowWakeUps {
 public:
  explicit SlowWakeUps(std::chrono::microseconds delay);
  ~SlowWakeUps();
  SlowWakeUps(const SlowWakeUps&) = delete;
  SlowWakeUps& operator=(const SlowWakeUps&) = delete;
};

}  // namespace ddp::test
