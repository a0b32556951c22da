// docs/your_model/power_sgd.hpp - a communication hook: PowerSGD of rank 1 (arXiv:1905.13727).
#pragma once

#include <torch/types.h>

#include <ddp_cpp/parallel/distributed_data_parallel.hpp>

#include <functional>
#include <unordered_map>

/// Sends each matrix of gradients (n, m) as two vectors, so n + m numbers instead of n * m. What
/// the two vectors leave out is added to the gradient of the next step. Other gradients are sent
/// as they are. Keep the object as long as the wrapper: register_comm_hook(std::ref(power_sgd)).
class PowerSgd {
 public:
  /// Collective. Does not only start: the second vector depends on the first one's mean.
  std::function<void()> operator()(const ddp::ProcessGroup& group, const ddp::GradBucket& bucket) {
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const torch::Tensor& gradient = bucket.gradients[i];
      if (gradient.dim() < 2) {
        group.all_reduce(gradient, c10d::ReduceOp::AVG);
        continue;
      }
      const torch::Tensor matrix = gradient.flatten(1);  // (n, m)
      State& state = states_[bucket.parameters[i].unsafeGetTensorImpl()];
      if (!state.right.defined()) {  // any vector without zeros, the same on all ranks
        state.right = torch::arange(1, matrix.size(1) + 1, matrix.options()).cos_().unsqueeze(1);
        state.error = torch::zeros_like(matrix);
      }
      const torch::Tensor wanted = matrix + state.error;
      const torch::Tensor left = wanted.mm(state.right);  // (n, 1)
      group.all_reduce(left, c10d::ReduceOp::AVG);
      left.div_(left.norm().clamp_min(1e-12));
      state.right = wanted.t().mm(left);  // (m, 1)
      const torch::Tensor own = left.mm(state.right.t());
      group.all_reduce(state.right, c10d::ReduceOp::AVG);
      state.error = wanted - own;
      gradient.copy_(left.mm(state.right.t()).view_as(gradient));
    }
    return [] {};
  }

 private:
  struct State {
    torch::Tensor right;  // (m, 1)
    torch::Tensor error;  // (n, m)
  };
  std::unordered_map<const torch::TensorImpl*, State> states_;
};
