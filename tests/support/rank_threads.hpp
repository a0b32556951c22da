// tests/support/rank_threads.hpp - ranks as threads of the test.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ddp::test {

/// Runs `body(rank)` on `world_size` threads, and rethrows a rank's first exception when all have
/// ended. Put assertions after the call, in the main thread.
inline void run_rank_threads(int world_size, const std::function<void(int rank)>& body) {
  std::exception_ptr first_exception;
  std::mutex mutex;
  const auto on_rank = [&](int rank) {
    try {
      body(rank);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!first_exception) {
        first_exception = std::current_exception();
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back(on_rank, rank);
  }
  threads.clear();  // joins them
  if (first_exception) {
    std::rethrow_exception(first_exception);
  }
}

}  // namespace ddp::test
