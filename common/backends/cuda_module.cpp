#include "common/backends/cuda_module.hpp"

#include "common/backends/module.hpp"

namespace ddp {

const CudaModule* cuda_module() {
  // LibTorch registers its CUDA support while the library is being opened; that must happen before
  // anything asks for it. Never closed: the registrations cannot be undone.
  static const CudaModule* const module = []() -> const CudaModule* {
    void* const function = open_module("libddp_cuda.so", kCudaModuleSymbol);
    return function == nullptr ? nullptr : reinterpret_cast<CudaModuleFunction>(function)();
  }();
  return module;
}

}  // namespace ddp
