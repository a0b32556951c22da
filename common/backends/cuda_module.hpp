// common/backends/cuda_module.hpp - everything that needs libtorch_cuda.so, behind one table of
// functions.
#pragma once

#include <memory>

#include "common/backends/backend.hpp"
#include "common/backends/cuda/cuda_graph.hpp"

namespace ddp {

/// What libddp_cuda.so offers. It is opened at run time, where a GPU will be used, so that a CPU
/// run pays neither the second nor the 300 MB of loading CUDA, and one binary serves both kinds of
/// machine.
struct CudaModule {
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_backend)(
      const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options);
  const char* (*nccl_version)();
  std::unique_ptr<GraphStream> (*make_graph_stream)(const torch::Device& device);
};

/// Opens the module, once. @return nullptr if this build has none
/// @throws UsageError if it is there but cannot be opened
const CudaModule* cuda_module();

/// The name under which the module exports its table, and the type of that function.
inline constexpr const char* kCudaModuleSymbol = "ddp_cuda_module";
using CudaModuleFunction = const CudaModule* (*)();

}  // namespace ddp
