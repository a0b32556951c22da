// common/training/optimizer.hpp - SGD, momentum, Adam and AdamW over flat parameters.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "common/data/step_observer.hpp"
#include "common/launch/options.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/parallel/gradient_buckets.hpp"
#include "common/parallel/mirrored.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The arithmetic is LibTorch's own (its fused kernels), the storage is flat: step() and
/// zero_grad() are one operation each, whatever the number of layers.
///
/// Note [Sharding]: with --shard-optimizer (ZeRO-1) each rank keeps the state of 1/n of the
/// parameters, updates these, and all ranks gather the weights. The parts are those of the buckets:
/// rank r owns the r-th part of each, see DividedTensor, so that every bucket keeps all ranks busy.
/// A snapshot holds the whole state in the order of the parameters, whoever kept it.
class Optimizer {
 public:
  /// Flattens the module's parameters if nothing has done so before.
  /// @param options --optimizer, --lr, --lr-schedule, --inject; --shard-optimizer and --bucket-mib
  Optimizer(const torch::nn::Module& module, const Options& options)
      : Optimizer(module, options, find_default_process_group()) {}
  /// @param process_group instead of the default one; outlives this object; none: no sharding
  Optimizer(const torch::nn::Module& module, const Options& options,
            const ProcessGroup* process_group);
  /// Updates every replica, on its thread and device; the state of a snapshot is the first one's.
  /// @throws UsageError for --speedup, which has replicas of its own
  Optimizer(MirroredReplicas& replicas, const Options& options);

  /// Sets the learning rate of this epoch, see resolve_lr_schedule().
  void set_epoch(int64_t epoch);
  /// Collective if is_sharded(); then gradients are read in this rank's parts only. Of a parameter
  /// whose gradient was dropped, as torch::nn::Module::zero_grad() does, and not made again: zero.
  void step();
  /// Keeps the gradients while those of more micro-batches are to be added to them.
  void zero_grad();
  /// While accumulating, step() changes nothing: this micro-batch does not complete its step.
  void set_accumulating(bool accumulating) { accumulating_ = accumulating; }
  /// @param observer learns from step() that backward is over, from zero_grad() that the update is
  void set_observer(StepObserver* observer) { observer_ = observer; }
  /// The same step for FusedStep: on the CPU by our own kernel, without an ATen operator and
  /// without an allocation.
  void fused_step();

  double learning_rate() const noexcept { return learning_rate_; }
  /// Instead of --lr; before set_epoch().
  void set_learning_rate(double rate) {
    learning_rate_ = initial_learning_rate_ = rate;
    for (Optimizer& replica : further_) {
      replica.set_learning_rate(rate);
    }
  }
  /// Null: the module is alone in this process.
  MirroredReplicas* replicas() const noexcept { return replicas_; }
  bool is_sharded() const noexcept { return process_group_ != nullptr; }

  /// Named tensors a snapshot must hold for the run to continue as if never stopped. Empty for
  /// plain SGD. Collective if is_sharded(): whole on rank 0, of no use on the others.
  NamedTensors state() const;
  /// Tensors of the same names, types and sizes, on any rank, without values.
  NamedTensors state_layout() const;
  /// Takes rank 0's `state`, of that layout; the others' is ignored. Collective. With replicas
  /// these get the model's weights too, which were loaded before.
  void load_state(const NamedTensors& state, const ProcessGroup* process_group);
  /// What this rank keeps.
  int64_t state_bytes() const;
  /// @throws Error (1) if there are replicas whose weights differ
  void expect_mirrored() const;

 private:
  /// Calls `apply` with this object and, at the same time, with those of further replicas.
  void for_each_replica(c10::function_ref<void(Optimizer&)> apply);
  void update_by_aten();
  void update_by_kernel();
  void exchange_weights();
  void average_weights();
  /// What this rank updates of a bucket; without sharding all of it.
  torch::Tensor part_of(const torch::Tensor& bucket) const;

  FlatParameters flat_;
  bool accumulating_ = false;
  bool step_is_partial_ = false;  // gradients of some of its micro-batches are there
  bool updating_ = false;  // between step() and zero_grad()
  StepObserver* observer_ = nullptr;
  std::string kind_;
  double initial_learning_rate_;
  double learning_rate_;  // of this epoch
  bool linear_;
  int64_t total_epochs_;
  // With --inject average-weights, a fault on purpose.
  const ProcessGroup* averages_over_ = nullptr;
  const ProcessGroup* process_group_ = nullptr;  // only if sharded, likewise the next two
  int rank_ = 0;
  int world_size_ = 1;
  std::vector<BucketRange> buckets_;  // without sharding one
  std::vector<DividedTensor> weights_;  // of each bucket
  NamedTensors state_;  // of this rank's part of each bucket, one after the other
  // This rank's parts, by bucket: what LibTorch's fused kernels are called with, made once.
  std::vector<torch::Tensor> part_data_;
  std::vector<torch::Tensor> part_grad_;
  std::vector<std::vector<torch::Tensor>> part_state_;  // of each of state_
  MirroredReplicas* replicas_ = nullptr;  // none: the module is alone in this process
  std::vector<Optimizer> further_;  // of all replicas but the first
};

/// The learning rate of a run's first epoch: --lr, or 0.1 (sgd; 0.05 for fashion-mnist), 0.02
/// (momentum 0.9), 0.001 (adam, adamw).
double resolve_learning_rate(const Options& options);

/// "constant", or "linear": epoch e of E trains with the first rate times (1 - e / E). Without
/// --lr-schedule constant, but linear for fashion-mnist, where a constant rate makes the accuracy
/// jump by half a percent from epoch to epoch.
std::string resolve_lr_schedule(const Options& options);

}  // namespace ddp
