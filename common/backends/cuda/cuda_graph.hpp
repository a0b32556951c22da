// common/backends/cuda/cuda_graph.hpp - work that a GPU repeats without being told again each
// operation.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <memory>

namespace ddp {

/// Captured work: the same operations on the same memory.
class CapturedWork {
 public:
  CapturedWork() = default;
  virtual ~CapturedWork() = default;
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  /// Launches it on the current stream.
  virtual void replay() = 0;
};

/// The stream on which work is captured: not the default one, which cannot be.
class GraphStream {
 public:
  GraphStream() = default;
  virtual ~GraphStream() = default;
  GraphStream(const GraphStream&) = delete;
  GraphStream& operator=(const GraphStream&) = delete;

  /// Runs `work` here, between what was launched before and what is launched after. Libraries make
  /// their handles and workspaces at first use, which is no part of a graph: so before capture().
  virtual void run(c10::function_ref<void()> work) = 0;
  /// Records what `work` launches without executing it.
  virtual std::unique_ptr<CapturedWork> capture(c10::function_ref<void()> work) = 0;
};

/// Part of libddp_cuda.so, see CudaModule.
std::unique_ptr<GraphStream> make_graph_stream(const torch::Device& device);

}  // namespace ddp
