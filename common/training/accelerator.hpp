// common/training/accelerator.hpp - a program of one device that trains on many, in Hugging Face
// Accelerate's words.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "common/data/data_loader.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/distributed_data_parallel.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/optimizer.hpp"
#include "common/training/training.hpp"

namespace ddp {

/// While it lives backward only adds gradients up, and the optimizer's step() and zero_grad() do
/// nothing, unless the micro-batch completes its step. See Note [Accumulation] in training.hpp.
class Accumulation {
 public:
  /// Both must outlive this object.
  Accumulation(Optimizer& optimizer, ProcessGroup& process_group, bool completes_step);
  ~Accumulation();
  Accumulation(const Accumulation&) = delete;
  Accumulation& operator=(const Accumulation&) = delete;

 private:
  Optimizer& optimizer_;
  ProcessGroup& process_group_;
};

/// Device, process group, DistributedDataParallel, DistributedSampler and Training, for a program
/// that makes model, optimizer and loader as if it were alone:
///
///     ddp::Accelerator accelerator(options, launch);
///     ddp::DataLoader loader(dataset, options);
///     const auto parallel_model = accelerator.prepare(model, optimizer, loader);
///     for (const int64_t epoch : accelerator.epochs()) {
///       loader.set_epoch(epoch);
///       for (const ddp::Batch& batch : loader) {
///         accelerator.backward(ddp::loss(parallel_model->forward(batch.input), batch));
///         optimizer.step();
///         optimizer.zero_grad();
///       }
///       if (...) accelerator.save_state();
///     }
///     accelerator.end_training();
///
/// It outlives what it prepares.
class Accelerator {
 public:
  /// Takes the device of launch.local_rank, see set_device(), and makes the default process group.
  /// @throws Error as set_device() and init_process_group()
  Accelerator(const Options& options, const LaunchEnvironment& launch);
  /// The ranks and the device of `process_group`, which must outlive this object.
  Accelerator(const Options& options, ProcessGroup& process_group)
      : options_(options), process_group_(process_group) {}

  const torch::Device& device() const noexcept { return process_group_.device(); }
  bool is_main_process() const noexcept { return process_group_.rank() == 0; }
  /// Writes `text` and the end of a line to standard output, on rank 0 only.
  void print(std::string_view text) const;

  /// Collective. Moves the model to the device and wraps it, with rank 0's weights; has the loader
  /// read this rank's part of the samples, of which no second copy is made; and begins the
  /// optimizer anew, without state, on the parameters where they lie then. The optimizer and the
  /// loader must outlive what is returned.
  /// @param loader of a whole dataset: DataLoader(dataset, options)
  /// @return the model whose backward averages gradients over the ranks
  /// @throws UsageError, on all ranks, if their datasets or models differ
  [[nodiscard]] std::shared_ptr<DistributedDataParallel<Mlp>> prepare(Mlp model,
                                                                      Optimizer& optimizer,
                                                                      DataLoader& loader);

  /// @param loss scalar. With --accumulate it is not divided here: ddp::loss() did, see Note
  /// [Averaging] in mlp.hpp
  static void backward(const torch::Tensor& loss) { loss.backward(); }
  /// For one pass through the body of a loop of one's own, so that gradients are summed over the
  /// ranks in the last micro-batch of a step only. In a loop over epochs() that is so anyway.
  [[nodiscard]] Accumulation accumulate(const Batch& batch) const;

  /// Collective, once for each batch of the prepared loader: what was computed of its samples, from
  /// all ranks, without what the sampler has added to make their shares even. Over an epoch every
  /// sample is there once, whatever the world size. (With --sampler none each rank has them all,
  /// and gets its own.)
  /// @param of_batch (samples of this rank's batch, ...) of any type, on device()
  /// @return (samples of all ranks' batches, ...), on every rank: rank 0's, then rank 1's, ..., in
  /// memory of its own
  /// @throws c10::Error unless there is a row for every sample of the batch at hand, or if ranks
  /// may make different numbers of micro-batches
  torch::Tensor gather_for_metrics(const torch::Tensor& of_batch) const;

  /// The epochs still to be trained, with clock, log and snapshots: see Training. Once.
  /// @throws Error (3), on all ranks, if --resume wants a snapshot that is refused
  Training::Epochs epochs() { return training().epochs(); }
  /// Inside the loop over epochs(), on all ranks: rank 0 writes --snapshot, as one file or not at
  /// all; every --save-every epochs the others wait for it at the beginning of the next epoch.
  /// @throws Error (1), on rank 0, if it cannot be written
  void save_state();
  /// Collective, before epochs(), which then goes on from there. Loads --snapshot, whatever
  /// --resume says, or the one before it if it is damaged. Rank 0 reads on the host, and every rank
  /// has its values on its own device.
  /// @return how many epochs are done, 0 if there is no snapshot
  /// @throws Error (3), on all ranks, if none is whole, or it is of a run with other settings
  int64_t load_state();
  /// Collective. Prints the last line, see Training::report(), and leaves the process group.
  void end_training();

 private:
  /// What prepare() was given, and what it has made of it. It ends with the model that was
  /// returned, before the optimizer and the loader do.
  struct Prepared {
    Prepared(const Options& options, const ProcessGroup& process_group, Mlp prepared_model,
             Optimizer& prepared_optimizer, DataLoader& prepared_loader)
        : model(std::move(prepared_model)),
          optimizer(prepared_optimizer),
          loader(prepared_loader),
          parallel_model(model, process_group, distributed_options(options)) {}
    Mlp model;
    Optimizer& optimizer;
    DataLoader& loader;
    DistributedDataParallel<Mlp> parallel_model;
    std::unique_ptr<Training> training;  // from load_state() or epochs() on
  };

  /// @throws c10::Error if there is none
  std::shared_ptr<Prepared> prepared() const;
  Training& training() const;

  Options options_;
  ProcessGroup& process_group_;
  std::weak_ptr<Prepared> prepared_;
};

}  // namespace ddp
