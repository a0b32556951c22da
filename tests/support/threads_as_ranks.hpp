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

/// How a rank is connected, and what it computes on.
struct Connection {
  std::string backend_name;
  torch::Device device;
  c10::intrusive_ptr<c10d::Backend> backend;
};
using Connect = std::function<Connection(int rank, const c10::intrusive_ptr<c10d::Store>& store)>;

/// Runs `body(process_group)` on `world_size` threads. Assertions belong after it, in the main
/// thread; the first exception of a rank is rethrown when all have ended.
inline void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& body,
                      const Connect& connect) {
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
        const Connection connection = connect(rank, store);
        attach_backend(*group, connection.device, connection.backend);
        ProcessGroup process_group(environment, store, group, connection.backend_name,
                                   connection.device);
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

/// The same on the CPU. @param backend_name "gloo" or "shm"
inline void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& body,
                      const std::string& backend_name = "gloo") {
  run_ranks(world_size, body, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    return Connection{
        backend_name, torch::kCPU,
        make_backend(backend_name, c10::make_intrusive<c10d::PrefixStore>(backend_name, store),
                     {rank, world_size, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"})};
  });
}

}  // namespace ddp::test
