// common/parallel/worker_pool.hpp - threads that wait for the next piece of work.
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/pause.hpp"

namespace ddp {

/// A step takes microseconds: threads that live as long as training are told to begin through one
/// variable. They look at it for a while before they sleep in the kernel, which costs more than
/// that to wake them.
class WorkerPool {
 public:
  /// Looks for work before a thread sleeps: some 10 us, longer would hurt where processors are too
  /// few.
  static constexpr int kFewLooks = 500;

  /// @param size threads that work at a time, the caller of run() included
  /// @throws std::system_error if one of them cannot be started; none is left then
  explicit WorkerPool(size_t size, int looks = kFewLooks) : looks_(looks) {
    try {
      for (size_t i = 1; i < size; ++i) {
        threads_.emplace_back([this, i] { work(i); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~WorkerPool() { stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  size_t size() const noexcept { return threads_.size() + 1; }

  /// Calls `task(i)` for i in [0, size()), each on a thread of its own, 0 on the caller's. Returns
  /// when all are done; then the first exception is rethrown. Does not allocate.
  void run(c10::function_ref<void(size_t)> task) {
    task_ = task;
    if (!threads_.empty()) {
      busy_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      round_.notify_all();
    }
    call(0);
    for (uint32_t busy = busy_.load(std::memory_order_acquire); busy != 0;) {
      busy = wait_for_change(busy_, busy);
    }
    if (first_exception_) {
      std::rethrow_exception(std::exchange(first_exception_, nullptr));
    }
  }

 private:
  void stop() {
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }

  void work(size_t index) {
    at::init_num_threads();  // a new thread would compute with all cores, see Note [Threads]
    uint32_t round = 0;
    while (true) {
      round = wait_for_change(round_, round);
      if (stop_) {
        return;
      }
      call(index);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        busy_.notify_one();
      }
    }
  }

  void call(size_t index) {
    try {
      task_(index);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_exception_) {
        first_exception_ = std::current_exception();
      }
    }
  }

  /// @return the value, once it is another than `old`
  uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) const {
    for (int i = 0; i < looks_; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) {
        return now;
      }
      pause_briefly();
    }
    value.wait(old, std::memory_order_acquire);
    return value.load(std::memory_order_acquire);
  }

  const int looks_;
  c10::function_ref<void(size_t)> task_;
  std::atomic<uint32_t> round_{0};  // increases when there is work
  std::atomic<uint32_t> busy_{0};  // threads of this round that are not done
  bool stop_ = false;
  std::mutex mutex_;  // of the exception
  std::exception_ptr first_exception_;
  std::vector<std::thread> threads_;
};

}  // namespace ddp
