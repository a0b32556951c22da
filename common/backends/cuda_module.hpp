// common/backends/cuda_module.hpp - what needs libtorch_cuda.so, behind one table of functions.
#pragma once

#include <c10/util/FunctionRef.h>

#include <memory>
#include <vector>

#include "common/backends/backend.hpp"

namespace ddp {

/// Captured work: the same operations on the same memory.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  /// Launches it on the current stream.
  virtual void replay() = 0;
};

/// The stream on which work is captured: not the default one, which cannot be.
class GraphStream {
 public:
  virtual ~GraphStream() = default;
  /// Runs `work` here, between what was launched before and what is launched after. Libraries make
  /// their handles and workspaces at first use, which is no part of a graph: so before capture().
  virtual void run(c10::function_ref<void()> work) = 0;
  /// Records what `work` launches without executing it.
  virtual std::unique_ptr<CapturedWork> capture(c10::function_ref<void()> work) = 0;
};

/// What ends the process when NCCL's watchdog of LibTorch 2.15 gives up.
inline constexpr const char* kNcclWatchdog =
    "NCCL's watchdog: a collective did not end in time, or a rank is gone";

/// The functions of libddp_cuda.so. It is opened at run time, where a GPU will be used, so that a
/// CPU run pays neither the second nor the 300 MB of loading CUDA, and one binary serves both kinds
/// of machine.
struct CudaModule {
  /// @param name "nccl" or "nccl-legacy" @throws UsageError if LibTorch has no such backend
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_backend)(
      const std::string& name, const c10::intrusive_ptr<c10d::Store>& store,
      const BackendOptions& options);
  std::unique_ptr<GraphStream> (*make_graph_stream)(const torch::Device& device);
  /// NCCL within one process: tensors of one size, each on another device, become their mean. On
  /// the current stream of each.
  void (*average)(const std::vector<torch::Tensor>& tensors);
};

/// Opens the module, once. @return nullptr if this build has none
/// @throws UsageError if it is there but cannot be opened
const CudaModule* cuda_module();

}  // namespace ddp
