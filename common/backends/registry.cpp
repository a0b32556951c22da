#include "common/backends/registry.hpp"

#include <iostream>

#include "common/backends/cuda_module.hpp"
#include "common/backends/gloo.hpp"
#include "common/backends/host_backend.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/backends/shm/shm_communicator.hpp"
#include "common/base/refuse.hpp"
#include "common/meet/board.hpp"
#include "common/meet/launchers.hpp"

namespace ddp {
namespace {

Board board_of(const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options) {
  return {store, options.rank, options.world_size, options.timeout};
}

/// Meets the other ranks through the store; later calls use memory only.
/// @throws the exceptions of shm::Communicator::connect()
/// @throws TransientError naming the ranks that did not come in time
c10::intrusive_ptr<c10d::Backend> make_shm_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  Board board = board_of(store, options);
  return make_host_backend(
      "shm", shm::Communicator::connect(options.rank, options.world_size, options.timeout,
                                        [&board](const std::string& mine) {
                                          return board.gather("shm", mine,
                                                              "the start of --backend shm");
                                        }));
}

/// Shared memory if all ranks can share it, else Gloo.
c10::intrusive_ptr<c10d::Backend> make_cpu_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  try {
    return make_shm_backend(store, options);
  } catch (const shm::SeveralHosts&) {
    // Gloo connects the hosts.
  } catch (const shm::SegmentError& error) {
    if (options.rank == 0) {
      std::cerr << fmt::format("note: --backend auto uses gloo, because shm cannot be used: {}\n",
                               error.what());
    }
  }
  return make_gloo_backend(store, options);
}

const MpiModule& need_mpi_module() {
  const MpiModule* const module = mpi_module();
  if (module == nullptr) {
    refuse(
        "--backend mpi: this build has no lib/libddp_mpi.so, expected libopenmpi-dev (or another "
        "MPI) when it was built; use --backend auto");
  }
  return *module;
}

}  // namespace

std::string resolve_backend(const std::string& name, const torch::Device& device) {
  if (name == "auto" && device.is_cuda()) {
    return "nccl";
  }
  if (name.starts_with("nccl") && !device.is_cuda()) {
    refuse("--backend {}: got device {}, expected a CUDA device; use --backend shm or gloo", name,
           device.str());
  }
  if (name == "shm" && !device.is_cpu()) {
    refuse("--backend shm: got device {}, expected the CPU; use --backend nccl", device.str());
  }
  return name;
}

void check_launch(const std::string& name, const LaunchEnvironment& environment,
                  const Variables& variables) {
  if (name != "mpi") {
    return;
  }
  need_mpi_module();
  if (!is_mpi_world(environment, variables)) {
    refuse(
        "--backend mpi: {} started the {} ranks, expected mpirun: MPI joins no other processes; "
        "mpirun -n {} build/bin/04_ddp_launcher --backend mpi, or --backend auto",
        environment.launcher, environment.world_size, environment.world_size);
  }
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options) {
  if (name == "auto") {
    return make_cpu_backend(store, options);
  }
  if (name == "shm") {
    try {
      return make_shm_backend(store, options);
    } catch (const shm::SegmentError& error) {
      board_of(store, options).wait_for_readers(name);
      refuse("--backend shm: {}; use --backend gloo", error.what());
    }
  }
  if (name == "gloo") {
    return make_gloo_backend(store, options);
  }
  if (name == "mpi") {
    return make_host_backend("mpi", need_mpi_module().connect(options.rank, options.world_size));
  }
  TORCH_CHECK(name.starts_with("nccl"),
              "Expected backend auto, shm, gloo, mpi, nccl or nccl-legacy, got ", name);
  return cuda_module()->make_nccl_backend(name, store, options);
}

}  // namespace ddp
