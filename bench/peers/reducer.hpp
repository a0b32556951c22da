// bench/peers/reducer.hpp - c10d::Reducer, the engine of Python's DistributedDataParallel, for
// comparison with ours in tests and in bench.
#pragma once

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <vector>

#include "common/parallel/process_group.hpp"

namespace ddp {

/// Wraps the Reducer and its constructor, which changes between releases of LibTorch.
class ReducerPeer {
 public:
  /// Buckets as torch.nn.parallel.DistributedDataParallel makes them: 1 MiB first, then 25 MiB.
  ReducerPeer(const torch::nn::Module& module, const ProcessGroup& process_group,
              bool find_unused_parameters);

  void before_forward() { reducer_->rebuild_buckets(); }
  /// Call it before a backward that communicates, not if gradients only accumulate.
  void prepare_for_backward(const std::vector<torch::Tensor>& outputs) {
    reducer_->prepare_for_backward(find_unused_parameters_ ? outputs
                                                           : std::vector<torch::Tensor>{});
  }

 private:
  bool find_unused_parameters_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace ddp
