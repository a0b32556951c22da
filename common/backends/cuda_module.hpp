// common/backends/cuda_module.hpp - functions that need libtorch_cuda.so, in one table.
#pragma once

#include <c10/util/FunctionRef.h>

#include <functional>
#include <memory>
#include <vector>

#include "common/backends/backend.hpp"
#include "common/base/module.hpp"

namespace ddp {

/// Stream for capturing: the default stream cannot be captured.
class GraphStream {
 public:
  virtual ~GraphStream() = default;
  /// Runs `work` on this stream, in order with the current stream's work. Call it before capture():
  /// libraries make their handles and workspaces at first use, and a graph cannot hold that.
  virtual void run(c10::function_ref<void()> work) = 0;
  /// Records the kernels that `work` launches, without executing them.
  /// @return launches them on the current stream: the same operations on the same memory
  virtual std::function<void()> capture(c10::function_ref<void()> work) = 0;
};

/// Message with which LibTorch 2.15's NCCL watchdog ends the process.
inline constexpr const char* kNcclWatchdog =
    "NCCL's watchdog: a collective did not end in time, or a rank is gone";

/// Functions of libddp_cuda.so, opened at run time if a GPU will be used: one binary serves all
/// machines, and a run on the CPU does not load CUDA, which takes a second and 300 MB.
struct CudaModule {
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_backend)(
      const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options);
  std::unique_ptr<GraphStream> (*make_graph_stream)(const torch::Device& device);
  /// Replaces tensors of one size, each on another device, by their mean: NCCL within one process,
  /// on the current stream of each device.
  void (*average)(const std::vector<torch::Tensor>& tensors);
};

/// @return nullptr if this build has none @throws UsageError if it is there but cannot be opened
inline const CudaModule* cuda_module() {
  // Opening the library registers CUDA with LibTorch. That must come before any use of CUDA.
  static const auto* const module = static_cast<const CudaModule*>(open_module(kCudaModule));
  return module;
}

}  // namespace ddp
