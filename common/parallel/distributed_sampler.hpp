// common/parallel/distributed_sampler.hpp - every rank reads its own part of every global batch.
#pragma once

#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/launch/options.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// What happens when the samples cannot be divided evenly by the ranks.
enum class Sharding {
  kExact,  ///< some ranks have one sample less: every sample is read once
  kPadded,  ///< as torch.utils.data.DistributedSampler: the first samples again, until all ranks
            ///< have equally many
};

struct DistributedSamplerOptions {
  int64_t dataset_size;
  int num_replicas;
  int rank;
  uint64_t seed;
  Sharding sharding = Sharding::kExact;
  // Faults on purpose, see --inject.
  bool ignores_epochs = false;  ///< every epoch has the order of epoch 0
  int64_t samples_left_out = 0;  ///< at the end of each epoch, by this rank only
};

/// All ranks draw the same permutation and rank r takes elements r, r + world size, ...: so the
/// ranks' batches together are what one process would read, which is why all stages train alike.
class DistributedSampler : public Sampler {
 public:
  /// The sampler of a stage: --seed, --sampler and --inject. With `--sampler none` every rank reads
  /// all samples, as a program does that forgot its sampler.
  /// Over the default group, or over `process_group`.
  /// @throws UsageError if the ranks' datasets differ
  DistributedSampler(const Dataset& dataset, const Options& options)
      : DistributedSampler(dataset, default_process_group(), options) {}
  DistributedSampler(const Dataset& dataset, const ProcessGroup& process_group,
                     const Options& options);
  /// @throws c10::Error unless 0 <= rank < num_replicas and dataset_size >= 0
  explicit DistributedSampler(const DistributedSamplerOptions& options);

  void set_epoch(int64_t epoch) override;
  const torch::Tensor& indices() const override { return indices_; }
  int64_t epoch_samples() const override { return epoch_samples_; }
  int num_replicas() const override { return options_.num_replicas; }
  int64_t unpadded_samples() const override;

 private:
  DistributedSamplerOptions options_;
  int64_t epoch_samples_;
  torch::Tensor indices_;
};

}  // namespace ddp
