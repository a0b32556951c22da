// common/parallel/sync_batch_norm.hpp - batch norm over the global batch.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "common/parallel/default_group.hpp"

namespace ddp {

/// Counterpart of torch.nn.SyncBatchNorm. While training, it normalises with the mean and the
/// variance of the global batch. So ranks train like a single process with BatchNorm. The ranks'
/// batches may differ in size if each rank weights its loss, see Note [Averaging] in
/// data_loader.hpp.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Over world(), as it is at each forward().
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& its_options)
      : NormImplBase(its_options) {}
  /// @param process_group must outlive this object
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& its_options,
                    const ProcessGroup& process_group)
      : NormImplBase(its_options),
        group_([&process_group]() -> const ProcessGroup& { return process_group; }) {}
  explicit SyncBatchNormImpl(int64_t num_features)
      : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}

  /// Collective while training, as is the backward, with two all-reduces each.
  /// @param input (batch, num_features, ...) @return the same shape and type
  /// @throws c10::Error on the CPU if there is one value of each feature on all ranks together
  torch::Tensor forward(const torch::Tensor& input);

 private:
  void _check_input_dim(const torch::Tensor& input) override;

  std::function<const ProcessGroup&()> group_ = world;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace ddp
