#include "tests/support/futex_waits.hpp"

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <thread>

namespace {

thread_local uint64_t waits = 0;
std::atomic<int64_t> delay_us{0};

}  // namespace

namespace ddp::test {

uint64_t futex_waits() {
  return waits;
}

SlowWakeUps::SlowWakeUps(std::chrono::microseconds delay) {
  delay_us = delay.count();
}

SlowWakeUps::~SlowWakeUps() {
  delay_us = 0;
}

}  // namespace ddp::test

extern "C" long syscall(long number, ...) noexcept {
  static auto* const original = reinterpret_cast<decltype(&syscall)>(dlsym(RTLD_NEXT, "syscall"));
  // As many as a call to the kernel can have, of which it looks at those that there are.
  std::array<long, 6> arguments;
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) {
    argument = va_arg(list, long);
  }
  va_end(list);
  const auto& [a, b, c, d, e, f] = arguments;
  const bool is_wait = number == SYS_futex && (b & FUTEX_CMD_MASK) == FUTEX_WAIT;
  waits += is_wait ? 1 : 0;
  const long result = original(number, a, b, c, d, e, f);
  if (is_wait && result == 0 && delay_us != 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  }
  return result;
}
