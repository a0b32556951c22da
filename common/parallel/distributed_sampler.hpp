// common/parallel/distributed_sampler.hpp - every rank reads its own part of every global batch.
#pragma once

#include "common/data/data_loader.hpp"

namespace ddp {

/// Shares out the samples. All ranks draw the same permutation, and rank r takes elements r,
/// r + world size, ... So the ranks' batches together are a single process's batch, and all stages
/// train alike. An epoch reads every sample once. If the world size does not divide the samples,
/// some ranks have one sample less, where torch.utils.data.DistributedSampler repeats samples. With
/// drop_last the epoch leaves out its last samples instead, so that all ranks have equally many.
class DistributedSampler : public Sampler {
 public:
  /// @param size size of the dataset @param seed the same on all ranks
  /// @param shuffle false: every epoch has the dataset's order
  /// @param drop_last for a loop over indices() that must have as many steps on every rank
  /// @throws c10::Error unless 0 <= rank < world_size and size >= 0
  DistributedSampler(int64_t size, int rank, int world_size, uint64_t seed, bool shuffle = true,
                     bool drop_last = false);

  void set_epoch(int64_t epoch) override;
  const torch::Tensor& indices() const override { return indices_; }
  int64_t epoch_samples() const override { return used_; }
  int num_replicas() const override { return world_size_; }

 private:
  int64_t size_;
  int64_t used_;  // samples of an epoch
  int rank_;
  int world_size_;
  uint64_t seed_;
  bool shuffle_;
  torch::Tensor indices_;
};

}  // namespace ddp
