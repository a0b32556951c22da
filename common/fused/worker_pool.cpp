#include "common/fused/worker_pool.hpp"

#include <ATen/Parallel.h>

#include <utility>

namespace ddp::fused {
namespace {

/// Some 20 us. Longer would hurt where there are more threads than processors.
constexpr int kLooks = 500;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// @return the value, once it is another than `old`
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kLooks; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) {
      return now;
    }
    relax();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

WorkerPool::WorkerPool(size_t size) {
  for (size_t i = 1; i < size; ++i) {
    threads_.emplace_back([this, i] { work(i); });
  }
}

WorkerPool::~WorkerPool() {
  stop_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void WorkerPool::run(c10::function_ref<void(size_t)> task) {
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

void WorkerPool::call(size_t index) {
  try {
    task_(index);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!first_exception_) {
      first_exception_ = std::current_exception();
    }
  }
}

void WorkerPool::work(size_t index) {
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

}  // namespace ddp::fused
