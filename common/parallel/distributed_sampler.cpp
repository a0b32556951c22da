#include "common/parallel/distributed_sampler.hpp"

#include <algorithm>

namespace ddp {
namespace {

DistributedSamplerOptions stage_options(const Dataset& dataset, const ProcessGroup& process_group,
                                        const Options& options) {
  process_group.verify_same("dataset", dataset.fingerprint);
  const bool shard = options.sampler != "none";
  return {.dataset_size = dataset.train.size(),
          .num_replicas = shard ? process_group.world_size() : 1,
          .rank = shard ? process_group.rank() : 0,
          .seed = options.seed,
          .sharding = options.sampler == "padded" ? Sharding::kPadded : Sharding::kExact,
          .ignores_epochs = options.inject == "no-set-epoch",
          // One step's: the other ranks then have a batch that this one does not.
          .samples_left_out = options.inject == "uneven-inputs" && process_group.rank() == 0
                                  ? options.batch_per_rank * options.accumulate
                                  : 0};
}

}  // namespace

DistributedSampler::DistributedSampler(const Dataset& dataset, const ProcessGroup& process_group,
                                       const Options& options)
    : DistributedSampler(stage_options(dataset, process_group, options)) {}

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options) {
  TORCH_CHECK(options.num_replicas >= 1, "Expected num_replicas >= 1, got ", options.num_replicas);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.num_replicas, "Expected rank in [0, ",
              options.num_replicas, "), got ", options.rank);
  TORCH_CHECK(options.dataset_size >= 0, "Expected dataset_size >= 0, got ", options.dataset_size);
  const int64_t replicas = options.num_replicas;
  epoch_samples_ = options.sharding == Sharding::kPadded
                       ? (options.dataset_size + replicas - 1) / replicas * replicas
                       : options.dataset_size;
  epoch_samples_ = std::max<int64_t>(0, epoch_samples_ - options.samples_left_out * replicas);
  set_epoch(0);
}

int64_t DistributedSampler::unpadded_samples() const {
  const int64_t replicas = options_.num_replicas;
  return (options_.dataset_size - options_.rank + replicas - 1) / replicas;
}

void DistributedSampler::set_epoch(int64_t epoch) {
  torch::Tensor order =
      shuffled_indices(options_.dataset_size, options_.seed, options_.ignores_epochs ? 0 : epoch);
  if (epoch_samples_ > order.size(0)) {
    // More replicas than samples repeat the whole order, hence the remainder.
    order = order.index_select(
        0, torch::arange(epoch_samples_, torch::kInt64).remainder(options_.dataset_size));
  }
  indices_ = order.slice(0, options_.rank, epoch_samples_, options_.num_replicas).contiguous();
}

}  // namespace ddp
