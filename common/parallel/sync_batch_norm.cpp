#include "common/parallel/sync_batch_norm.hpp"

#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>

namespace ddp {
namespace {

/// Sum over the ranks. All ranks' losses depend on it, so its gradient is the sum of the gradients.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& tensor, const ProcessGroup* group) {
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    const torch::Tensor sum = tensor.clone();
    group->all_reduce(sum);
    return sum;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* const group =
        reinterpret_cast<const ProcessGroup*>(context->saved_data["group"].toInt());
    // By the function itself, so that second derivatives work.
    return {SumOverRanks::apply(gradients[0].contiguous(), group), torch::Tensor()};
  }
};

}  // namespace

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  TORCH_CHECK(input.dim() >= 2 && input.size(1) == options.num_features(),
              "Expected an input of (batch, ", options.num_features(), ", ...), got ",
              input.sizes());
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  if (!is_training()) {
    return torch::batch_norm(input, weight, bias, running_mean, running_var,
                             /*training=*/!running_mean.defined(), /*momentum=*/0, options.eps(),
                             /*cudnn_enabled=*/true);
  }
  // The default group is per thread, and a checkpoint calls forward in a thread of autograd's.
  if (uses_default_group_ && find_default_process_group() != nullptr) {
    process_group_ = find_default_process_group();
  }
  const ProcessGroup* const group =
      process_group_ == nullptr ? &default_process_group() : process_group_;
  const int64_t features = options.num_features();
  // Features last, so that values per feature broadcast. Half types are added up in float32.
  const torch::Tensor x =
      input.to(at::toOpMathType(input.scalar_type())).transpose(1, input.dim() - 1);
  const torch::Tensor own_count =
      torch::full({1}, static_cast<double>(x.numel() / features), x.options());
  const torch::Tensor sums =
      SumOverRanks::apply(torch::cat({x.sum_to_size({features}), own_count}), group);
  const torch::Tensor count = sums.detach()[features];
  TORCH_CHECK(!count.is_cpu() || count.item<double>() > 1,  // does not wait for a GPU
              "Expected more than one value of each feature on all ranks together, got one");
  const torch::Tensor mean = sums.narrow(0, 0, features) / count;
  const torch::Tensor centred = x - mean;
  // By the squares of centred values: with large means other formulas lose all digits.
  const torch::Tensor variance =
      SumOverRanks::apply(centred.square().sum_to_size({features}), group) / count;
  torch::Tensor result = centred * (variance + options.eps()).rsqrt();
  if (weight.defined()) {
    result = result * weight + bias;
  }
  if (running_mean.defined()) {
    const torch::NoGradGuard no_grad;
    num_batches_tracked += 1;
    const double momentum = options.momentum().value_or(1.0 / num_batches_tracked.item<double>());
    const torch::Tensor unbiased = variance * (count / (count - 1).clamp_min(1));
    running_mean.lerp_(mean.to(running_mean.scalar_type()), momentum);
    running_var.lerp_(unbiased.to(running_var.scalar_type()), momentum);
  }
  return result.transpose(1, input.dim() - 1).to(input.scalar_type());
}

}  // namespace ddp
