#include "common/backends/backend.hpp"

#include <fmt/format.h>

#include <iostream>

#include "common/backends/cuda_module.hpp"
#include "common/backends/hierarchical.hpp"
#include "common/backends/host_backend.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/backends/shm/shm_communicator.hpp"
#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

/// Meets the other ranks through the store, then through memory only. CPU tensors only.
/// @throws shm::SegmentError on all ranks alike if they are not on one host or cannot share memory
/// @throws TransientError naming the ranks that did not come in time
c10::intrusive_ptr<c10d::Backend> make_shm_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  try {
    return make_host_backend(
        "shm",
        shm::Communicator::connect(
            {.rank = options.rank, .world_size = options.world_size, .timeout = options.timeout},
            exchange_through(store, "shm", options)));
  } catch (const shm::SegmentError&) {
    let_others_read(*store, "shm", options.rank, options.world_size, options.timeout);
    throw;
  }
}

/// Shared memory as far as it reaches.
c10::intrusive_ptr<c10d::Backend> make_cpu_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  const char* wanted = "shm";
  try {
    if (options.num_nodes == 1) {
      return make_shm_backend(store, options);
    }
    // What a launcher calls nodes may well be one host.
    const Topology topology = find_topology(store, options);
    if (topology.hosts.size() == 1) {
      return make_shm_backend(store, options);
    }
    if (has_two_levels(topology)) {
      wanted = "hierarchical";
      return make_hierarchical_backend(store, options, topology);
    }
  } catch (const shm::SegmentError& error) {
    if (options.rank == 0) {
      std::cerr << fmt::format("note: --backend auto uses gloo, because {} cannot be used: {}\n",
                               wanted, error.what());
    }
  }
  return make_gloo_backend(store, options);
}

const MpiModule& need_mpi_module() {
  const MpiModule* const module = mpi_module();
  if (module == nullptr) {
    throw UsageError(
        "--backend mpi: this build has no lib/libddp_mpi.so, expected libopenmpi-dev (or another "
        "MPI) when it was built; use --backend auto");
  }
  return *module;
}

/// The store only tells who is missing when a collective does not end: one that does not return
/// within options.timeout ends the process with code 1. Tensors of a GPU go through host memory.
/// @throws UsageError if there is no libddp_mpi.so or MPI's ranks are others
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  const MpiModule& module = need_mpi_module();
  auto communicator = module.connect(
      {.rank = options.rank,
       .world_size = options.world_size,
       .timeout = options.timeout,
       .leave_note = [store](const std::string& key,
                             const std::string& text) { store->set(key, text); },
       .find_note = [store](const std::string& key) -> std::optional<std::string> {
         return store->check({key}) ? std::optional(store->get_to_str(key)) : std::nullopt;
       },
       .last_call = options.last_call});
  return make_host_backend("mpi", std::move(communicator),
                           module.is_cuda_aware() ? GpuTensors::kDirect : GpuTensors::kStaged);
}

}  // namespace

std::string resolve_backend(const std::string& name, const torch::Device& device) {
  if (name == "auto") {
    return device.is_cuda() ? "nccl" : "auto";
  }
  if (name == "nccl" && !device.is_cuda()) {
    throw UsageError("--backend nccl: got device " + device.str() +
                     ", expected a CUDA device; use --backend shm or gloo");
  }
  if ((name == "shm" || name == "hierarchical") && !device.is_cpu()) {
    throw UsageError(fmt::format(
        "--backend {}: got device {}, expected the CPU; use --backend nccl", name, device.str()));
  }
  return name;
}

void check_launch(const std::string& name, const LaunchEnvironment& environment) {
  if (name == "mpi") {
    need_mpi_module();
    const std::string problem = mpi_launch_problem(environment, process_getenv);
    if (!problem.empty()) {
      throw UsageError("--backend mpi: " + problem);
    }
  }
}

std::string mpi_launch_problem(const LaunchEnvironment& environment, const GetEnv& getenv) {
  const std::string rank = std::to_string(environment.rank);
  const std::string world_size = std::to_string(environment.world_size);
  const std::string expected = fmt::format(
      "expected mpirun: MPI joins no other processes; mpirun -n {} build/bin/04_ddp_launcher "
      "--backend mpi, or --backend auto",
      world_size);
  const auto open_mpi_rank = getenv("OMPI_COMM_WORLD_RANK");
  const auto open_mpi_size = getenv("OMPI_COMM_WORLD_SIZE");
  if (open_mpi_rank == rank && open_mpi_size == world_size) {
    return "";
  }
  if (open_mpi_rank || open_mpi_size) {
    return fmt::format("{} started rank {} of {} inside rank {} of {} of mpirun, {}",
                       environment.launcher, rank, world_size, open_mpi_rank.value_or("?"),
                       open_mpi_size.value_or("?"), expected);
  }
  // srun --mpi=pmix: the size is known when MPI has begun.
  if (environment.world_size == 1 || getenv("PMIX_RANK") == rank) {
    return "";
  }
  return fmt::format("{} started the {} ranks, {}", environment.launcher, world_size, expected);
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options) {
  try {
    if (name == "shm") {
      return make_shm_backend(store, options);
    }
    if (name == "hierarchical") {
      return make_hierarchical_backend(store, options, find_topology(store, options));
    }
  } catch (const shm::SegmentError& error) {
    throw UsageError(fmt::format("--backend {}: {}; use --backend gloo", name, error.what()));
  }
  if (name == "auto") {
    return make_cpu_backend(store, options);
  }
  if (name == "gloo") {
    return make_gloo_backend(store, options);
  }
  if (name == "mpi") {
    return make_mpi_backend(store, options);
  }
  TORCH_CHECK(name == "nccl", "Expected backend auto, shm, hierarchical, gloo, mpi or nccl, got ",
              name);
  return cuda_module()->make_nccl_backend(store, options);
}

std::string lost_rank(const c10d::Backend* backend) {
  const auto* const notices = dynamic_cast<const NoticesLostRanks*>(backend);
  return notices == nullptr ? "" : notices->lost_rank();
}

}  // namespace ddp
