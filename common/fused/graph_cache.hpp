// common/fused/graph_cache.hpp - the CUDA Graphs of a training step.
#pragma once

#include <c10/util/FunctionRef.h>

#include <array>
#include <memory>
#include <utility>

#include "common/backends/cuda_module.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp::fused {

/// A graph repeats exactly what it captured. So there is one for each kind of micro-batch (first of
/// its step or not, last of its step or not), for whole batches only, and all are captured anew
/// when the learning rate changes.
class GraphCache {
 public:
  static constexpr size_t kKinds = 4;

  explicit GraphCache(std::shared_ptr<GraphStream> stream) : stream_(std::move(stream)) {}

  /// Executes `work`: a few times as it is, then as a graph.
  /// @param kind in [0, kKinds); `work` must be the same for each kind
  /// @param process_group that `work` uses, or none
  void run(size_t kind, double learning_rate, const ProcessGroup* process_group,
           c10::function_ref<void()> work) {
    if (std::exchange(learning_rate_, learning_rate) != learning_rate) {
      release();
    }
    Graph& graph = graphs_[kind];
    if (graph.runs < kRunsBeforeCapture) {
      ++graph.runs;
      stream_->run(work);
      return;
    }
    if (graph.captured == nullptr) {
      graph.captured = stream_->capture(work);
      if (process_group != nullptr) {
        graph.sent = process_group->take_wait();
        // Events that were recorded belong to the capture.
        graph.sent.backward = {};
        graph.sent.gather = {};
      }
    }
    graph.captured->replay();
    if (process_group != nullptr) {
      process_group->record_bytes(graph.sent);
    }
  }

  /// Frees the graphs; run() would capture them anew.
  void release() {
    for (Graph& graph : graphs_) {
      graph.captured.reset();
    }
  }

 private:
  /// Enough for every library to have made its handles and chosen its kernels.
  static constexpr int kRunsBeforeCapture = 3;

  struct Graph {
    int runs = 0;  // uncaptured ones
    std::unique_ptr<CapturedWork> captured;
    CommunicationWait sent;  // its bytes; nothing else of it
  };

  std::shared_ptr<GraphStream> stream_;
  std::array<Graph, kKinds> graphs_;
  double learning_rate_ = 0;
};

}  // namespace ddp::fused
