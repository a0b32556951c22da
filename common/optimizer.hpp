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
  /// @param options --optimizer, --lr and --lr-schedule
  Optimizer(const torch::nn::Module& module, const Options& options);

  /// Sets the learning rate of this epoch, see resolve_lr_schedule().
  void set_epoch(int64_t epoch);
  void step();
  /// The same step by our own kernel, on the CPU: no ATen operator, no allocation.
  void fused_step();
  void zero_grad() { flat_.grad.zero_(); }

  double learning_rate() const noexcept { return learning_rate_; }

  /// Named tensors a snapshot must hold for the run to continue as if never stopped. Empty for
  /// plain SGD.
  const std::vector<std::pair<std::string, torch::Tensor>>& state() const { return state_; }

 private:
  FlatParameters flat_;
  std::string kind_;
  double initial_learning_rate_;
  double learning_rate_;  // of this epoch
  bool linear_;
  int64_t total_epochs_;
  std::vector<std::pair<std::string, torch::Tensor>> state_;
};

/// The learning rate of a run's first epoch: --lr, or 0.1 (sgd; 0.05 for fashion-mnist), 0.02
/// (momentum 0.9), 0.001 (adam, adamw).
double resolve_learning_rate(const Options& options);

/// "constant", or "linear": epoch e of E trains with the first rate times (1 - e / E). Without
/// --lr-schedule constant, but linear for fashion-mnist, where a constant rate makes the accuracy
/// jump by half a percent from epoch to epoch.
std::string resolve_lr_schedule(const Options& options);

}  // namespace ddp
