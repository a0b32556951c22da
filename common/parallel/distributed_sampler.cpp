#include "common/parallel/distributed_sampler.hpp"

namespace ddp {

DistributedSampler::DistributedSampler(int64_t size, int rank, int world_size, uint64_t seed,
                                       bool shuffle, bool drop_last)
    : size_(size),
      used_(size),
      rank_(rank),
      world_size_(world_size),
      seed_(seed),
      shuffle_(shuffle) {
  TORCH_CHECK(world_size >= 1, "Expected world_size >= 1, got ", world_size);
  TORCH_CHECK(rank >= 0 && rank < world_size, "Expected rank in [0, ", world_size, "), got ", rank);
  TORCH_CHECK(size >= 0, "Expected size >= 0, got ", size);
  used_ -= drop_last ? size % world_size : 0;
  set_epoch(0);
}

void DistributedSampler::set_epoch(int64_t epoch) {
  indices_ = (shuffle_ ? shuffled_indices(size_, seed_, epoch) : torch::arange(size_))
                 .slice(0, rank_, /*end=*/used_, world_size_)
                 .contiguous();
}

}  // namespace ddp
