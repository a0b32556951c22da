// common/parallel/distributed_sampler.hpp - every rank reads its own part of every global batch.
#pragma once

#include "common/data/data_loader.hpp"

namespace ddp {

/// All ranks draw the same permutation and rank r takes elements r, r + world size, ...: so the
/// ranks' batches together are what one process would read, which is why all stages train alike.
/// Every sample is read once in an epoch; if the ranks do not divide the samples evenly, some ranks
/// have one sample less. (torch.utils.data.DistributedSampler repeats the first samples instead.)
class DistributedSampler : public Sampler {
 public:
  /// @param size of the dataset @param seed the same on all ranks
  /// @param shuffle false: every epoch has the dataset's own order
  /// @throws c10::Error unless 0 <= rank < world_size and size >= 0
  DistributedSampler(int64_t size, int rank, int world_size, uint64_t seed, bool shuffle = true);

  void set_epoch(int64_t epoch) override;
  const torch::Tensor& indices() const override { return indices_; }
  int64_t epoch_samples() const override { return size_; }
  int num_replicas() const override { return world_size_; }

 private:
  int64_t size_;
  int rank_;
  int world_size_;
  uint64_t seed_;
  bool shuffle_;
  torch::Tensor indices_;
};

}  // namespace ddp
