// common/training/training.hpp - what a stage does not show: epochs, clock, log and snapshots.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/fused/fused_step.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/snapshot.hpp"
#include "common/training/training_log.hpp"

namespace ddp {

/// A training run, so that a stage's loop is the loop and nothing else:
///
///     ddp::Training training(options, launch, dataset, loader, model, optimizer);
///     for (const int64_t epoch : training.epochs()) {
///       sampler.set_epoch(epoch);
///       for (const ddp::Batch& batch : loader) { ... optimizer.step(); optimizer.zero_grad(); }
///       if (...) training.save_snapshot();
///     }
///     training.report();
///
/// Note [The clock]: a step is timed without a line in the loop. The loader begins it, ddp::loss()
/// ends forward, Optimizer::step() ends backward, zero_grad() ends the update, and asking the
/// loader for the next batch ends the step; each tells its StepObserver, which this object is.
///
/// Note [Accumulation]: with --accumulate the loader knows which micro-batch completes a step.
/// Until then step() and zero_grad() do nothing, and DistributedDataParallel all-reduces nothing.
///
/// Note [The end of an epoch] is the exhaustion of the loader: the ranks' losses are summed, the
/// log line is printed, and if a run has diverged every rank throws, before rank 0 could save.
///
/// Note [The next epoch]: going on in epochs() looks whether a signal asked any rank to stop (then
/// rank 0 saves and all leave with exit code 85), gives rank 0 the parts of a sharded optimizer for
/// the snapshot that it is saving, waits until it has saved, and sets the learning rate. The first
/// epoch is where a resumed run goes on.
///
/// Note [Found batches]: with --batch-size auto the constructor settles how large batches are,
/// before anything else knows it, and tells the loader and the optimizer: see find_batch().
///
/// Note [Speed-ups]: with --speedup, epochs() trains inside, by FusedStep, and yields nothing.
class Training final : private StepObserver {
 public:
  /// Everything must outlive this object. The model holds its initial weights, the same on all
  /// ranks of the default process group, if there is one. From now on a signal to stop waits for
  /// the end of the epoch.
  /// @param devices of the replicas in one process, as stage 02 has them; empty: the model's own
  /// @param process_group of the ranks that train together; none: this is the only process
  Training(const Options& options, const LaunchEnvironment& launch, const Dataset& dataset,
           DataLoader& loader, Mlp model, Optimizer& optimizer,
           std::vector<torch::Device> devices = {},
           ProcessGroup* process_group = find_default_process_group());
  ~Training() override;
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  /// The epochs still to be trained, for a range-based for.
  class Epochs {
   public:
    explicit Epochs(Training& training) : training_(training) {}
    Epochs& begin() { return *this; }
    std::nullptr_t end() const { return nullptr; }
    int64_t operator*() const { return training_.epoch_; }
    Epochs& operator++();
    bool operator!=(std::nullptr_t) const;

   private:
    Training& training_;
  };
  /// Loads the snapshot if --resume says so. To be called once.
  /// @throws Error (3), on all ranks, see Snapshot::load()
  Epochs epochs();
  /// The same before epochs(), which then goes on from there.
  /// @return how many epochs are done
  int64_t load_snapshot();

  /// Rank 0 only, inside the loop, after every --save-every-th epoch.
  /// @throws Error (1) if it cannot be written
  void save_snapshot();

  /// Evaluates the model on every held-out sample once, checks that all ranks hold the same
  /// weights, prints the last line on rank 0 and writes --metrics.
  /// @throws Error (1) if a weight is not finite, or if the ranks' weights differ
  void report() { log_.report(dataset_); }

 private:
  void begin_epoch(int64_t steps) override;
  void begin_batch(const Batch& batch) override;
  void begin(Phase phase) override { log_.begin(phase); }
  void gradients_are_finite(bool known) override { log_.gradients_are_finite(known); }
  void add_loss(const torch::Tensor& loss) override { log_.add_loss(loss); }
  void end_batch(const Batch& batch) override { log_.end_batch(batch); }
  void end_epoch() override;

  /// Whether the epoch at hand is a --save-every-th one; with 0 none is.
  bool is_due() const { return options_.save_every > 0 && (epoch_ + 1) % options_.save_every == 0; }
  void set_epoch(int64_t epoch);
  void finish_epoch();
  void train_by_fused_step();
  void differ_in_collectives() const;

  const Options options_;  // with the batch that was found
  const LaunchEnvironment& launch_;
  const Dataset& dataset_;
  DataLoader& loader_;
  Optimizer& optimizer_;
  ProcessGroup* process_group_;  // none: this is the only process
  TrainingLog log_;
  Snapshot snapshot_;
  std::unique_ptr<FusedStep> fused_step_;  // none with --speedup none
  bool loaded_ = false;
  int64_t epoch_ = 0;
  bool epoch_ended_ = false;
};

}  // namespace ddp
