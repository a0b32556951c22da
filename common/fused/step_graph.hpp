// common/fused/step_graph.hpp - a training step as a CUDA graph.
#pragma once

#include "common/backends/cuda_module.hpp"

namespace ddp {

/// Captures the kernels of a step on a GPU and repeats them: the CPU launches one graph instead of
/// some 30 kernels. A graph repeats the same operations on the same memory. If the step has
/// collectives, destroy the graph before the process group, because it uses the connections.
class StepGraph {
 public:
  /// @param stream from cuda_module()->make_graph_stream()
  explicit StepGraph(std::unique_ptr<GraphStream> stream) : stream_(std::move(stream)) {}

  /// Executes the step: the first three times directly, then as a graph.
  void run(c10::function_ref<void()> step) {
    if (eager_steps_ > 0) {
      --eager_steps_;
      stream_->run(step);
      return;
    }
    if (!replay_) {
      replay_ = stream_->capture(step);
    }
    replay_();
  }

 private:
  std::unique_ptr<GraphStream> stream_;
  int eager_steps_ = 3;  // to go: every library makes its handles and chooses its kernels
  std::function<void()> replay_;
};

}  // namespace ddp
