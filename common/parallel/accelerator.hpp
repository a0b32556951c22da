// common/parallel/accelerator.hpp - a rank's parts, with the names of Hugging Face Accelerate.
#pragma once

#include "common/device/device.hpp"
#include "common/launch/options.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/distributed_sampler.hpp"

namespace ddp {

/// Device, process group, DistributedSampler and DistributedDataParallel of a rank:
///
///     ddp::Accelerator accelerator(options, launch);
///     ddp::DistributedSampler sampler = accelerator.prepare_sampler(samples, seed);
///     auto parallel_model = accelerator.prepare_model(model);
///     ...
///     accelerator.backward(loss);
class Accelerator {
 public:
  /// Collective. Takes the device of launch.local_rank and makes the default process group.
  /// @throws the errors of set_device() and init_process_group()
  Accelerator(const Options& options, const LaunchEnvironment& launch)
      : bucket_mib_(options.bucket_mib) {
    init_process_group(options, launch, set_device(options, launch.local_rank));
  }

  const torch::Device& device() const { return group().device(); }
  bool is_main_process() const { return group().rank() == 0; }

  /// This rank's share of the samples, in a new order in every epoch.
  DistributedSampler prepare_sampler(int64_t samples, uint64_t seed) const {
    return {samples, group().rank(), group().world_size(), seed};
  }
  /// Collective. Moves the model to the device and wraps it, with rank 0's weights. Parameters stay
  /// the same objects for an optimizer.
  /// @throws UsageError, on all ranks, if their models differ
  template <typename ModuleHolder>
  std::unique_ptr<DistributedDataParallel<ModuleHolder>> prepare_model(
      ModuleHolder model, const CallSite& site = CallSite::current()) const {
    model->to(device());
    return std::make_unique<DistributedDataParallel<ModuleHolder>>(std::move(model), bucket_mib_,
                                                                   site);
  }

  /// Collective. Computes the gradients and their mean over the ranks. @param loss ()
  static void backward(const torch::Tensor& loss) { loss.backward(); }
  /// Collective. @param tensor of any shape, floating-point, on any device
  /// @return the mean of the ranks' `tensor`, in new memory on device()
  torch::Tensor reduce_mean(const torch::Tensor& tensor,
                            const CallSite& site = CallSite::current()) const {
    const torch::NoGradGuard no_grad;
    const torch::Tensor sum = tensor.detach().to(device()).clone();
    group().all_reduce(sum, c10d::ReduceOp::SUM, site.in("reduce_mean"));
    return sum.div_(group().world_size());
  }

  /// Collective. Compares the ranks' weights and leaves the process group.
  /// @throws the errors of expect_same_weights() and destroy_process_group()
  void end_training(const torch::nn::Module& model,
                    const CallSite& site = CallSite::current()) const {
    expect_same_weights(model, site);
    destroy_process_group(site);
  }

 private:
  static const ProcessGroup& group() { return default_process_group(); }

  double bucket_mib_;
};

}  // namespace ddp
