#include "common/parallel/accelerator.hpp"

#include "common/backends/device.hpp"

namespace ddp {

Accelerator::Accelerator(const Options& options, const LaunchEnvironment& launch)
    : bucket_mib_(options.bucket_mib) {
  init_process_group(options, launch, set_device(options, launch.local_rank));
}

torch::Tensor Accelerator::reduce_mean(const torch::Tensor& tensor, const CallSite& site) const {
  const torch::NoGradGuard no_grad;
  torch::Tensor mean = tensor.detach().to(device()).clone();
  group().all_reduce(mean, c10d::ReduceOp::SUM, site.in("reduce_mean"));
  return mean.div_(group().world_size());
}

void Accelerator::end_training(const torch::nn::Module& model, const CallSite& site) const {
  expect_same_weights(model, site);
  destroy_process_group(site);
}

}  // namespace ddp
