// common/base/watchdog.hpp - a thread that notices calls which do not return.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace ddp {

/// For calls into libraries that know no timeout. The thread wakes a few times a second; a watched
/// call costs two stores.
class Watchdog {
 public:
  /// @param on_slow the thread calls it once per call that takes `slow_after`
  /// @param on_late likewise for `timeout`, after `on_slow`; it gets what has_ended() takes
  Watchdog(std::chrono::milliseconds slow_after, std::chrono::milliseconds timeout,
           std::function<void()> on_slow, std::function<void(uint64_t call)> on_late);

  /// The watched call has come further, and is as young as a new one.
  void progress() { calls_.fetch_add(2, std::memory_order_release); }

  bool has_ended(uint64_t call) const { return calls_.load(std::memory_order_acquire) != call; }

  /// The watched call is the life of this object. One at a time.
  class Watch {
   public:
    explicit Watch(Watchdog& watchdog) : calls_(watchdog.calls_) { count(); }
    ~Watch() { count(); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    void count() { calls_.fetch_add(1, std::memory_order_release); }
    std::atomic<uint64_t>& calls_;
  };

 private:
  void run(const std::stop_token& stop);

  std::chrono::milliseconds slow_after_;
  std::chrono::milliseconds timeout_;
  std::function<void()> on_slow_;
  std::function<void(uint64_t)> on_late_;
  std::atomic<uint64_t> calls_{0};  // odd while one runs
  std::jthread thread_;
};

}  // namespace ddp
