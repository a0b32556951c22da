// common/fused/fused_step.hpp - `--speedup fused` and `graph`: the step without autograd.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/training_log.hpp"

namespace ddp {

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
  /// With `--speedup none` this is nothing. All arguments must outlive it; the process group's
  /// ranks must hold the same weights.
  /// @throws UsageError for `--speedup graph` without a GPU
  FusedStep(const Options& options, Mlp model, Optimizer& optimizer,
            const ProcessGroup* process_group = nullptr);
  /// Stage 02: a replica per device computes its share of every batch, on a thread of its own.
  FusedStep(const Options& options, Mlp model, Optimizer& optimizer,
            const std::vector<torch::Device>& devices);
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  /// Computes the batch's gradients; if the batch completes the step, averages them over the ranks
  /// and updates the weights. Tells the log.
  /// @return false, having done nothing, with `--speedup none`
  bool run(const Batch& batch, TrainingLog& log);

 private:
  struct State;
  std::unique_ptr<State> state_;  // none with --speedup none
};

}  // namespace ddp
