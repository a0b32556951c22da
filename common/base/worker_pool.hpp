// common/base/worker_pool.hpp - threads that wait for the next piece of work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace ddp {

/// Pause of a processor between two reads of memory that other threads write.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Threads that live as long as training, because a step takes microseconds. They spin briefly
/// before they sleep in the kernel, because a wake-up costs more than the spin.
class WorkerPool {
 public:
  /// Reads before a waiting thread sleeps: about 10 us. More hurts on machines with few cores.
  static constexpr int kSpinsBeforeSleep = 500;

  /// @param size threads that work at a time, the caller of run() included
  /// @throws std::system_error if a thread cannot be started; none is left then
  explicit WorkerPool(size_t size, int looks = kSpinsBeforeSleep)
      : WorkerPool() {  // so the destructor runs if a thread cannot be started
    looks_ = looks;
    for (size_t i = 1; i < size; ++i) {
      threads_.emplace_back(&WorkerPool::work, this, i);
    }
  }
  ~WorkerPool() {
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }

  size_t size() const noexcept { return threads_.size() + 1; }

  /// Calls `task(i)` for i in [0, size()), each on a thread of its own, 0 on the caller's. Returns
  /// when all are done, and rethrows the first exception. Does not allocate.
  template <typename Task>
  void run(const Task& task) {
    task_ = &task;
    call_task_ = [](const void* called, size_t i) { (*static_cast<const Task*>(called))(i); };
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
  WorkerPool() = default;

  void work(size_t index) {
    for (uint32_t round = wait_for_change(round_, 0); !stop_;
         round = wait_for_change(round_, round)) {
      call(index);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        busy_.notify_one();
      }
    }
  }

  void call(size_t index) {
    try {
      call_task_(task_, index);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!first_exception_) {
        first_exception_ = std::current_exception();
      }
    }
  }

  /// @return the value, once it differs from `old`
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

  int looks_ = kSpinsBeforeSleep;
  const void* task_ = nullptr;
  void (*call_task_)(const void* task, size_t index) = nullptr;
  std::atomic<uint32_t> round_{0};  // increases when there is work
  std::atomic<uint32_t> busy_{0};  // threads of this round that are not done
  bool stop_ = false;
  std::mutex mutex_;  // guards first_exception_
  std::exception_ptr first_exception_;
  std::vector<std::jthread> threads_;  // the last member: joined before the others go
};

}  // namespace ddp
