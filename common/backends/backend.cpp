#include "common/backends/backend.hpp"

#include "common/backends/cuda_module.hpp"
#include "common/exit_codes.hpp"

namespace ddp {

std::string resolve_backend(const std::string& name, const torch::Device& device) {
  if (name == "auto") {
    return device.is_cuda() ? "nccl" : "gloo";
  }
  if (name == "nccl" && !device.is_cuda()) {
    throw UsageError("--backend nccl: got device " + device.str() +
                     ", expected a CUDA device; use --backend gloo");
  }
  return name;
}

c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const BackendOptions& options) {
  if (name == "gloo") {
    return make_gloo_backend(store, options);
  }
  TORCH_CHECK(name == "nccl", "Expected backend gloo or nccl, got ", name);
  return cuda_module()->make_nccl_backend(store, options);
}

}  // namespace ddp
