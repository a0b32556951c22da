// tests/support/threads_as_ranks.hpp - ranks inside a single test process, over real connections or
// real shared memory.
#pragma once

#include <ATen/Parallel.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>

#include "common/backends/registry.hpp"
#include "common/base/process_exit.hpp"
#include "common/parallel/default_group.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/rank_threads.hpp"

namespace ddp {

/// All parameters, frozen ones too, in order: (total) float64, on the host.
inline torch::Tensor parameter_vector(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  return torch::nn::utils::parameters_to_vector(module.parameters())
      .to(torch::kCPU, torch::kFloat64);
}

}  // namespace ddp

namespace ddp::test {

/// run_rank_threads() for ranks that use LibTorch.
inline void run_threads(int world_size, const std::function<void(int rank)>& body) {
  // c10d's flight recorder is a single object of the process and does not support ranks as threads.
  [[maybe_unused]] static const int once = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  run_rank_threads(world_size, [&](int rank) {
    at::init_num_threads();
    thread_is_a_rank = true;
    body(rank);
  });
  SUCCEED("no rank threw");  // ranks' checks throw, so a test may have no other assertion
}

/// Identity of a rank on this host. @param store place where the ranks meet
inline LaunchEnvironment rank_of(int rank, int world_size, const StoreLocation& store = {}) {
  LaunchEnvironment launch;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = world_size;
  launch.store = store;
  launch.store.server = store.kind == ddp::StoreLocation::Kind::kTcp ? 0 : -1;
  return launch;
}

/// Device of a rank, and its connection.
struct Connection {
  torch::Device device;
  ProcessGroup::Connect connect;
};
using Connect = std::function<Connection(int rank)>;

/// Runs `body(process_group)` on `world_size` threads, without a rendezvous, which takes longer
/// than most bodies. Call it on the main thread.
inline void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& body,
                      const Connect& connect) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(world_size, [&](int rank) {
    const auto [device, make] = connect(rank);
    ProcessGroup process_group(rank_of(rank, world_size), store, device, make);
    body(process_group);
    process_group.barrier();
  });
}

/// The same on the CPU. @param backend_name "gloo" or "shm"
inline void run_ranks(int world_size, const std::function<void(ProcessGroup&)>& body,
                      const std::string& backend_name = "gloo") {
  const auto make = [&](const c10::intrusive_ptr<c10d::Store>& store, int rank,
                        int its_world_size) {
    return make_backend(backend_name, c10::make_intrusive<c10d::PrefixStore>(backend_name, store),
                        {rank, its_world_size, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"});
  };
  run_ranks(world_size, body, [&](int) { return Connection{torch::kCPU, make}; });
}

/// Runs `body` on one to three ranks, over each backend.
inline void on_any_ranks(const std::function<void(ProcessGroup&)>& body) {
  for (const std::string backend : {"gloo", "shm"}) {
    for (const int world_size : {1, 2, 3}) {
      INFO(backend << ", world size " << world_size);
      CHECK_NOTHROW(run_ranks(world_size, body, backend));
    }
  }
}

}  // namespace ddp::test
