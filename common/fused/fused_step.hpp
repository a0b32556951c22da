// common/fused/fused_step.hpp - `--speedup fused` and `graph`: the step without autograd.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

class GraphStream;

/// A whole training step of the MLP written by hand: forward, backward, all-reduce and update on
/// storage that was allocated before, in the order in which autograd and DistributedDataParallel
/// would do it, and ending on the same weights.
///
/// Autograd is general: it builds a graph in every forward, and each of its operators looks up what
/// to call and allocates what it returns. For one known model none of that is needed. What is left
/// is the arithmetic; docs/speedup.md says how, and what it brings.
///
/// - fused: on the CPU our own kernels (common/fused/), on a GPU ATen's operators.
/// - graph: that GPU step, all-reduce and update included, captured once in a CUDA Graph.
class FusedStep {
 public:
  /// Everything must outlive it; the process group's ranks must hold the same weights.
  /// @param devices several, in one process: a replica on each computes its share of every batch,
  /// on a thread of its own
  /// @param process_group gradients are averaged over it; none: this is the only process
  /// @param update changes the weights by the gradients that are there
  /// @param graph_stream where `--speedup graph` captures; null: on a stream of the GPU
  /// @throws c10::Error for `--speedup graph` without a GPU
  FusedStep(const Options& options, Mlp model, const std::vector<torch::Device>& devices,
            const ProcessGroup* process_group, std::function<void()> update,
            std::shared_ptr<GraphStream> graph_stream = nullptr);
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  /// Computes the batch's gradients; if the batch completes the step, averages them over the ranks
  /// and updates the weights. Tells the batch's observer.
  /// @param learning_rate of the update, which a graph repeats as it was captured
  void run(const Batch& batch, double learning_rate);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddp
