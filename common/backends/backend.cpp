#include "common/backends/backend.hpp"

#include <cstdio>

#include "common/backends/cuda_module.hpp"
#include "common/backends/hierarchical.hpp"
#include "common/backends/mpi/mpi.hpp"
#include "common/backends/mpi/mpi_module.hpp"
#include "common/backends/shm.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp {
namespace {

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
      std::fprintf(stderr, "note: --backend auto uses gloo, because %s cannot be used: %s\n",
                   wanted, error.what());
    }
  }
  return make_gloo_backend(store, options);
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
    throw UsageError("--backend " + name + ": got device " + device.str() +
                     ", expected the CPU; use --backend nccl");
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
      throw UsageError("--backend shm: " + std::string(error.what()) + "; use --backend gloo");
    }
  }
  if (name == "hierarchical") {
    try {
      return make_hierarchical_backend(store, options, find_topology(store, options));
    } catch (const shm::SegmentError& error) {
      throw UsageError("--backend hierarchical: " + std::string(error.what()) +
                       "; use --backend gloo");
    }
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

}  // namespace ddp
