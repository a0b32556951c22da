// tests/support/threads_as_ranks.hpp - a world of ranks inside one test process, over real
// connections or real shared memory.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/backends/backend.hpp"
#include "common/parallel/process_group.hpp"
#include "tests/catch.hpp"

namespace ddp::test {

/// Runs `body(process_group)` on `world_size` threads. Assertions belong after it, in the main
/// thread; the first exception of a rank is rethrown when all have ended.
/// @param backend_name "gloo" or "shm"
inline void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& body,
                      const std::string& backend_name = "gloo") {
  // c10d's flight recorder is one object for the process and not made for ranks that are threads.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::exception_ptr first_exception;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::init_num_threads();
        LaunchEnvironment environment;
        environment.rank = environment.local_rank = rank;
        environment.world_size = environment.local_world_size = world_size;
        const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world_size);
        const auto backend =
            make_backend(backend_name, c10::make_intrusive<c10d::PrefixStore>(backend_name, store),
                         {rank, world_size, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"});
        attach_backend(*group, torch::kCPU, backend);
        ProcessGroup process_group(environment, store, group, backend_name, torch::kCPU);
        body(process_group);
        process_group.barrier();
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first_exception) {
          first_exception = std::current_exception();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_exception) {
    std::rethrow_exception(first_exception);
  }
  SUCCEED("no rank threw");  // what ranks check throws: a test may have no other assertion
}

}  // namespace ddp::test
