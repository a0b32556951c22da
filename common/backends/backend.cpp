#include "common/backends/backend.hpp"

#include <cstdio>

#include "common/backends/cuda_module.hpp"
#include "common/backends/shm.hpp"
#include "common/exit_codes.hpp"

namespace ddp {
namespace {

c10::intrusive_ptr<c10d::Backend> make_cpu_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BackendOptions& options) {
  if (options.num_nodes == 1) {
    try {
      return make_shm_backend(store, options);
    } catch (const shm::SegmentError& error) {
      if (options.rank == 0) {
        std::fprintf(stderr, "note: --backend auto uses gloo, because shm cannot be used: %s\n",
                     error.what());
      }
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
  if (name == "shm" && !device.is_cpu()) {
    throw UsageError("--backend shm: got device " + device.str() +
                     ", expected the CPU; use --backend nccl");
  }
  return name;
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
  if (name == "gloo") {
    return make_gloo_backend(store, options);
  }
  TORCH_CHECK(name == "nccl", "Expected backend auto, shm, gloo or nccl, got ", name);
  return cuda_module()->make_nccl_backend(store, options);
}

}  // namespace ddp
