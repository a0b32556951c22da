// common/data/data_loader.hpp - samplers, and the loader that makes a process's batches.
#pragma once

#include "common/data/samples.hpp"

namespace ddp {

/// The samples of one step of one process.
struct Batch {
  torch::Tensor input;  ///< (samples, ...) on the loader's device; pixels as float32
  torch::Tensor target;  ///< (samples, ...) on the loader's device
  /// Weight of its mean loss in the mean over ranks; 1 for a whole batch. See Note [Averaging].
  double weight = 1;

  int64_t size() const { return input.sizes().front(); }
  /// Micro-batches of at most `samples` samples, at least one, as views of this batch. Their
  /// weighted losses add up to the weighted loss of the batch.
  std::vector<Batch> split(int64_t samples) const;
};
// Note [Averaging]: DDP averages the ranks' gradients, as if every rank's batch were equally large.
// In the last step of an epoch the batches differ: 5 samples over 2 ranks are 3 and 2. So a rank
// with k of the step's s samples on n ranks multiplies its mean loss by k * n / s, here 3 * 2 / 5
// and 2 * 2 / 5. The mean of the weighted losses over the ranks is then the mean loss over the
// step's samples, and all world sizes take the same steps.

/// The order in which this process reads the samples of an epoch. The order depends only on the
/// seed and the epoch, so a resumed run reads what an unbroken run reads.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Shuffles the samples for this epoch. Without the call every epoch has the order of epoch 0.
  virtual void set_epoch(int64_t epoch) = 0;
  /// @return (samples of this process) int64, on the host
  virtual const torch::Tensor& indices() const = 0;
  /// Number of samples of an epoch, over all processes.
  virtual int64_t epoch_samples() const = 0;
  /// Number of processes that share the samples.
  virtual int num_replicas() const = 0;
};

/// Order of the samples in `epoch`, equal on all ranks. Python gets the same order from
/// `torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch))`.
torch::Tensor shuffled_indices(int64_t size, uint64_t seed, int64_t epoch);

/// All samples, shuffled, for one process: stages 01 and 02.
class RandomSampler : public Sampler {
 public:
  RandomSampler(int64_t size, uint64_t seed) : size_(size), seed_(seed) { set_epoch(0); }
  void set_epoch(int64_t epoch) override { indices_ = shuffled_indices(size_, seed_, epoch); }
  const torch::Tensor& indices() const override { return indices_; }
  int64_t epoch_samples() const override { return size_; }
  int num_replicas() const override { return 1; }

 private:
  int64_t size_;
  uint64_t seed_;
  torch::Tensor indices_;
};

/// Iterates over this process's batches of one epoch. The last step of an epoch takes the remaining
/// samples. All processes make the same number of steps, if need be with an empty batch.
/// Each batch overwrites the memory of an earlier batch: clone() a batch to keep it. A backward
/// through an overwritten batch ends in autograd's "modified by an inplace operation".
class DataLoader {
 public:
  /// @param samples rows of any type, dense and on the host
  /// @param sampler must outlive the loader
  /// @param batch_size samples per process and step
  /// @param drop_last leaves out the last step of an epoch if its batches are not whole: models
  /// with batch norm cannot learn from a single sample
  DataLoader(const Samples& samples, Sampler& sampler, int64_t batch_size,
             const torch::Device& device = torch::kCPU, bool drop_last = false);
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  int64_t batch_size() const noexcept { return batch_size_; }
  /// Number of samples of the largest batch: at most batch_size().
  int64_t max_batch() const;
  /// Number of samples of a whole step, over all processes.
  int64_t samples_per_step() const { return batch_size_ * sampler_.num_replicas(); }
  /// Number of steps of an epoch, the same in all processes.
  int64_t steps() const;
  const Sampler& sampler() const noexcept { return sampler_; }

  class Iterator {
   public:
    explicit Iterator(DataLoader* loader) : loader_(loader) {}
    const Batch& operator*() const { return loader_->batch_; }
    Iterator& operator++() {
      loader_->load(loader_->step_ + 1);
      return *this;
    }
    bool operator!=(std::nullptr_t) const { return loader_->step_ < loader_->steps_; }

   private:
    DataLoader* loader_;
  };
  Iterator begin();
  std::nullptr_t end() const { return nullptr; }

 private:
  void reserve(int64_t samples);
  /// Makes step `step` of the epoch the current one.
  void load(int64_t step);
  /// The samples of order_[begin, begin + count). A GPU that keeps the samples gathers them itself.
  Samples gather(int64_t begin, int64_t count);

  Samples samples_;
  Sampler& sampler_;
  const int64_t batch_size_;
  const torch::Device device_;
  const bool drop_last_;
  const bool is_resident_;  ///< the samples are on the device
  Samples room_;  ///< memory of a batch, where it is gathered
  torch::Tensor order_;  ///< (samples) int64: rows of samples_ for this process and epoch
  int64_t steps_ = 0;
  int64_t step_ = 0;
  Batch batch_;
};

}  // namespace ddp
