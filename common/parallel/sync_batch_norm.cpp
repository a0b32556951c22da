#include "common/parallel/sync_batch_norm.hpp"

#include <ATen/OpMathType.h>

#include "common/parallel/nn.hpp"

namespace ddp {
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
  const ProcessGroup& group = group_();
  const CallSite site = CallSite::current().in("SyncBatchNorm");
  const int64_t features = options.num_features();
  // Features last, so that values per feature broadcast. Half types are added up in float32.
  const torch::Tensor x =
      input.to(at::toOpMathType(input.scalar_type())).transpose(1, input.dim() - 1);
  const torch::Tensor own_count =
      torch::full({1}, static_cast<double>(x.numel() / features), x.options());
  const torch::Tensor sums =
      nn::all_reduce(torch::cat({x.sum_to_size({features}), own_count}), group, site);
  const torch::Tensor all_count = sums.detach()[features];
  TORCH_CHECK(!all_count.is_cpu() || all_count.item<double>() != 1,  // does not wait for a GPU
              "Expected more than one value of each feature on all ranks together, got one");
  const torch::Tensor count = all_count.clamp_min(1);  // no rank has a sample: no NaN
  const torch::Tensor mean = sums.narrow(0, 0, features) / count;
  const torch::Tensor centred = x - mean;
  // By the squares of centred values: with large means other formulas lose all digits.
  const torch::Tensor variance =
      nn::all_reduce(centred.square().sum_to_size({features}), group, site) / count;
  torch::Tensor result = centred * (variance + options.eps()).rsqrt();
  if (weight.defined()) {
    result = result * weight + bias;
  }
  if (running_mean.defined()) {
    const torch::NoGradGuard no_grad;
    const torch::Tensor is_batch = all_count.sign();  // 0 if no rank has a sample
    num_batches_tracked += is_batch.to(torch::kLong);
    const torch::Tensor momentum =
        is_batch * (options.momentum() ? torch::full_like(is_batch, *options.momentum())
                                       : 1 / num_batches_tracked.clamp_min(1).to(mean));
    const torch::Tensor unbiased = variance * (count / (count - 1).clamp_min(1));
    const auto update = [&](torch::Tensor& running, const torch::Tensor& value) {
      running.lerp_(value.to(running.scalar_type()), momentum.to(running.scalar_type()));
    };
    update(running_mean, mean);
    update(running_var, unbiased);
  }
  return result.transpose(1, input.dim() - 1).to(input.scalar_type());
}

}  // namespace ddp
