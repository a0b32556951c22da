// common/base/sleep.hpp - to sleep until it is time, or until there is no need any more.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace ddp {

/// @return true after `time`, false once `stop` is requested
inline bool sleep_unless_stopped(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any sleep;
  std::unique_lock<std::mutex> lock(mutex);
  return !sleep.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
}

}  // namespace ddp
