// common/optimizer.hpp - SGD, momentum, Adam and AdamW as one operation over all parameters.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "common/flat_parameters.hpp"
#include "common/options.hpp"

namespace ddp {

/// The arithmetic is LibTorch's own (its fused kernels), the storage is flat: step() and
/// zero_grad() are one operation each, whatever the number of layers.
class Optimizer {
 public:
  /// Flattens the module's parameters if nothing has done so before.
  /// @param options --optimizer and --lr; without --lr 0.1 (sgd), 0.02 (momentum 0.9), 0.001 (adam,
  /// adamw)
  Optimizer(const torch::nn::Module& module, const Options& options);

  void step();
  void zero_grad() { flat_.grad.zero_(); }

  double learning_rate() const noexcept { return learning_rate_; }
  /// Named tensors a snapshot must hold for the run to continue as if never stopped. Empty for
  /// plain SGD.
  const std::vector<std::pair<std::string, torch::Tensor>>& state() const { return state_; }

 private:
  FlatParameters flat_;
  std::string kind_;
  double learning_rate_;
  std::vector<std::pair<std::string, torch::Tensor>> state_;
};

/// The learning rate of a run: --lr, or the optimizer's default.
double resolve_learning_rate(const Options& options);

}  // namespace ddp
