// common/data/data_loader.hpp - which samples a process reads, in what order, in which batches.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/data/dataset.hpp"
#include "common/data/step_observer.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// What one process computes on at a time.
struct Batch {
  /// (samples, in_features) float32, on the loader's device; reused by the next batch
  torch::Tensor input;
  torch::Tensor target;  ///< (samples) int64 or (samples, 1) float32
  /// Samples of the whole optimizer step / ranks, see Note [Averaging].
  double step_samples_per_rank = 0;
  bool completes_step = true;  ///< false while --accumulate has more of this step to come
  StepObserver* observer = &no_observer;  ///< the loader's
  /// (samples) int64 if the loader leaves the gathering to the step, see Note [Staging]: input and
  /// target are then all samples, and the batch is these rows of them. Else undefined.
  torch::Tensor rows{};

  int64_t size() const { return (rows.defined() ? rows : input).sizes().front(); }
};

/// For whoever computes on input and target as they are.
/// @throws c10::Error if gathering them was left to the step
inline void check_gathered(const Batch& batch) {
  TORCH_CHECK(!batch.rows.defined(),
              "Expected a batch that the loader has gathered, got rows of all samples: with "
              "--speedup graph loop over Training's epochs, or set DataLoaderOptions::step_gathers "
              "to false");
}

/// The order in which this process reads the samples of an epoch. The order is a function of seed
/// and epoch alone, so that a resumed run continues as if it had never stopped.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Reshuffles. Without this call every epoch would have the order of epoch 0.
  virtual void set_epoch(int64_t epoch) = 0;
  /// @return (samples of this process) int64, on the host
  virtual const torch::Tensor& indices() const = 0;
  /// Samples of the epoch over all processes that share it, and how many those are.
  virtual int64_t epoch_samples() const = 0;
  virtual int num_replicas() const = 0;
  /// How many of indices(), the first ones, are no padding: over all processes every sample once.
  virtual int64_t unpadded_samples() const { return indices().size(0); }
};

/// All samples, shuffled: stages 01 and 02.
class RandomSampler : public Sampler {
 public:
  /// As the command line says: --seed.
  RandomSampler(const Dataset& dataset, const Options& options)
      : RandomSampler(dataset.train.size(), options.seed) {}
  RandomSampler(int64_t dataset_size, uint64_t seed);
  void set_epoch(int64_t epoch) override;
  const torch::Tensor& indices() const override { return indices_; }
  int64_t epoch_samples() const override { return dataset_size_; }
  int num_replicas() const override { return 1; }

 private:
  int64_t dataset_size_;
  uint64_t seed_;
  torch::Tensor indices_;
};

/// The permutation of epoch `epoch`: the same on every rank, and the same as Python's
/// `torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch))`.
torch::Tensor shuffled_indices(int64_t size, uint64_t seed, int64_t epoch);

struct DataLoaderOptions {
  int64_t batch_per_rank;
  int64_t accumulate = 1;  ///< batches per optimizer step
  torch::Device device = torch::kCPU;
  bool resident = false;  ///< see Note [Staging]
  bool step_gathers = false;  ///< resident ones: batches are Batch::rows
};

/// Whether a device other than the CPU has room for all samples, and for four times as much.
/// DDP_RESIDENT_MIB=N allows N MiB instead.
/// @throws UsageError if that is no number
bool fits_on(const torch::Device& device, const Samples& samples);
/// As the command line says: options.batch_per_rank, which run_alone() and its kin have made of
/// --global-batch, --accumulate and --speedup.
DataLoaderOptions loader_options(const Samples& samples, const Options& options,
                                 const torch::Device& device);

/// Iterates over this process's batches of one epoch. A batch is gathered into memory that every
/// batch of its size uses again: no allocation but for an epoch's last, smaller batch. The last
/// step of an epoch takes what is left; all processes make the same number of steps, if need be
/// with an empty batch.
class DataLoader {
 public:
  /// Both must outlive the loader.
  DataLoader(const Samples& samples, Sampler& sampler, const DataLoaderOptions& options);
  DataLoader(const Samples& samples, Sampler& sampler, const Options& options,
             const torch::Device& device)
      : DataLoader(samples, sampler, loader_options(samples, options, device)) {}
  /// The training samples of `dataset`, which must outlive the loader, as the only process reads
  /// them: all, shuffled, on the host. Accelerator::prepare() makes them one rank's.
  DataLoader(const Dataset& dataset, const Options& options)
      : DataLoader(dataset, std::make_unique<RandomSampler>(dataset, options), options) {}
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;
  /// Of a loader that has a dataset(): from the next epoch on it reads what `sampler` says, as the
  /// command line says, and hands out batches on `device`. Samples are copied only to a GPU that
  /// keeps them, see Note [Staging].
  void reshard(std::unique_ptr<Sampler> sampler, const Options& options,
               const torch::Device& device);
  /// @param observer is told of every batch from now on, and must outlive the loader or be
  /// replaced; null: nobody is
  void set_observer(StepObserver* observer) {
    batch_.observer = observer == nullptr ? &no_observer : observer;
  }
  void set_epoch(int64_t epoch) { sampler_->set_epoch(epoch); }
  int64_t batch_per_rank() const noexcept { return options_.batch_per_rank; }
  int64_t accumulate() const noexcept { return options_.accumulate; }
  const Sampler& sampler() const noexcept { return *sampler_; }
  const Samples& samples() const noexcept { return samples_; }  ///< all that it may read
  const Dataset* dataset() const noexcept { return dataset_; }  ///< null: it was made of samples
  const Batch& batch() const noexcept { return batch_; }  ///< the one at hand
  /// How many of its samples, the first ones, are no padding.
  int64_t unpadded_samples() const;
  /// From the next epoch on. Gives back the memory of batches so far before it takes that of these.
  void set_batch(int64_t batch_per_rank, int64_t accumulate);
  /// Of an epoch; some processes may have one more.
  int64_t samples_per_rank() const { return sampler_->epoch_samples() / sampler_->num_replicas(); }

  class Iterator {
   public:
    explicit Iterator(DataLoader* loader) : loader_(loader) {}
    const Batch& operator*() const { return loader_->batch_; }
    Iterator& operator++() {
      loader_->batch_.observer->end_batch(loader_->batch_);
      loader_->next();
      return *this;
    }
    bool operator!=(std::nullptr_t) const { return loader_->has_batch_; }

   private:
    DataLoader* loader_;
  };
  Iterator begin();
  std::nullptr_t end() const { return nullptr; }

 private:
  DataLoader(const Dataset& dataset, std::unique_ptr<Sampler> sampler, const Options& options)
      : DataLoader(dataset.train, *sampler, options, torch::kCPU) {
    dataset_ = &dataset;
    own_sampler_ = std::move(sampler);
  }

  /// Room for the largest batch, and views of its beginning for the last batch that was smaller.
  struct Buffers {
    Samples whole;
    Samples rest;
    const Samples& first(int64_t samples);
  };
  /// Where the host gathers a batch. Pinned if it is then copied to a device.
  struct Slot {
    Buffers gathered;
    std::optional<c10::Event> is_copied;  // likewise
    void wait_for_copy() const {
      if (is_copied) {
        is_copied->synchronize();  // at once, unless the device is two batches behind
      }
    }
  };
  /// Where the device has it then.
  struct Copy {
    Buffers buffers;
    c10::Event is_used;
  };

  /// Where a batch begins: the step of the epoch, and its first sample in the sampler's indices.
  struct Place {
    int64_t step = 0;
    int64_t position = 0;
  };

  int64_t samples_per_step() const;  // of all processes
  bool is_in_epoch(const Place& place) const;
  Place after(const Place& place) const;  // one batch further
  void next();
  void set_up();
  void reserve(int64_t samples);
  /// The samples of indices [position, position + samples), on the device.
  const Samples& gather(int64_t position, int64_t samples);
  /// The slot that this thread may fill.
  Slot& next_free();
  const Samples& copy_to_device(Slot& slot, const Samples& gathered);
  c10::Stream current_stream() const;

  const Dataset* dataset_ = nullptr;
  std::unique_ptr<Sampler> own_sampler_;  // none: the caller keeps it
  Samples samples_;  // contiguous, on the device if they are resident
  torch::Tensor order_;  // of this epoch: rows of samples_, on the device if they are there
  Sampler* sampler_;
  DataLoaderOptions options_;
  Batch batch_;
  // Note [Staging]: samples for which a GPU has room are kept there, and it gathers batches itself;
  // with --speedup graph as a part of the step's graph, which finds the batch's rows always in one
  // place. Where it has none, the host gathers into pinned memory, and a stream of its own copies
  // from there while the device still computes on the batch before. So there are two slots and two
  // copies. The host waits before it fills a slot again until that was copied, the stream until the
  // device has computed on what the copy held before, and the device for the stream. (The copies
  // need no record_stream(): nothing is freed before the device's stream has waited for them.)
  std::vector<Slot> slots_;  // one on the host and for resident samples: it is the batch
  size_t slot_ = 0;  // the next one
  std::vector<Copy> copies_;
  size_t copy_ = 0;  // of the batch at hand
  std::optional<c10::Stream> copy_stream_;
  torch::Tensor rows_;  // if the step gathers
  int64_t reserved_ = 0;  // samples
  bool has_batch_ = false;
  Place place_;  // of the next batch
};

}  // namespace ddp
