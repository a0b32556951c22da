// common/fused/worker_pool.hpp - threads that wait for the next piece of work.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ddp::fused {

/// A step takes microseconds: threads that live as long as training are told to begin through one
/// variable. They look at it for a while before they sleep in the kernel, which costs more than
/// that to wake them.
class WorkerPool {
 public:
  /// @param size threads that work at a time, the caller of run() included
  explicit WorkerPool(size_t size);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  size_t size() const noexcept { return threads_.size() + 1; }

  /// Calls `task(i)` for i in [0, size()), each on a thread of its own, 0 on the caller's. Returns
  /// when all are done; then the first exception is rethrown. Does not allocate.
  void run(c10::function_ref<void(size_t)> task);

 private:
  void work(size_t index);
  void call(size_t index);

  c10::function_ref<void(size_t)> task_;
  std::atomic<uint32_t> round_{0};  // increases when there is work
  std::atomic<uint32_t> busy_{0};  // threads of this round that are not done
  bool stop_ = false;
  std::mutex mutex_;  // of the exception
  std::exception_ptr first_exception_;
  std::vector<std::thread> threads_;
};

}  // namespace ddp::fused
