#include "common/fused/graph_cache.hpp"

namespace ddp::fused {
namespace {

/// Enough for every library to have made its handles and chosen its kernels.
constexpr int kRunsBeforeCapture = 3;

}  // namespace

void GraphCache::run(size_t kind, double learning_rate, const ProcessGroup* process_group,
                     c10::function_ref<void()> work) {
  if (learning_rate != learning_rate_) {
    release();
    learning_rate_ = learning_rate;
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

void GraphCache::release() {
  for (Graph& graph : graphs_) {
    graph.captured.reset();
  }
}

}  // namespace ddp::fused
