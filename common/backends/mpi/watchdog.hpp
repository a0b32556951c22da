// common/backends/mpi/watchdog.hpp - a thread that notices calls which do not return.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace ddp {

/// For calls into libraries that know no timeout. The thread wakes a few times a second; a watched
/// call costs two stores.
class Watchdog {
 public:
  /// Called by the thread.
  struct Actions {
    std::function<void()> slow;  ///< once per call that takes `slow_after`
    /// Once per call that takes `timeout`, after `slow`. @param call for has_ended()
    std::function<void(uint64_t call)> late;
  };
  Watchdog(std::chrono::milliseconds slow_after, std::chrono::milliseconds timeout,
           Actions actions);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  bool has_ended(uint64_t call) const { return calls_.load(std::memory_order_acquire) != call; }

  /// The watched call is the life of this object. One at a time.
  class Watch {
   public:
    explicit Watch(Watchdog& watchdog) : watchdog_(watchdog) { watchdog_.begin(); }
    ~Watch() { watchdog_.end(); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog& watchdog_;
  };

 private:
  void begin();
  void end();
  void run();

  std::chrono::milliseconds slow_after_;
  std::chrono::milliseconds timeout_;
  Actions actions_;
  std::atomic<uint64_t> calls_{0};  // odd while one runs
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ddp
