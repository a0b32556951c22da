// common/training/log.hpp - what training prints, and what --metrics and --trace write.
#pragma once

#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/data/data_loader.hpp"
#include "common/data/mlp.hpp"
#include "common/launch/gpu_monitor.hpp"
#include "common/launch/options.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/metrics_file.hpp"
#include "common/training/progress_bar.hpp"
#include "common/training/step_clock.hpp"
#include "common/training/trace.hpp"

namespace ddp {

/// The printed lines of a run. It prints and times; it changes nothing, and training without it
/// ends on the same weights. It has many members, because a stage is to have one object that
/// reports, for the terminal and for files.
///
/// Note [Steps]: a step lasts from the end of the step before, which is the call of step(), to its
/// own end: fetching the batch, forward, backward, communication and update. The first step of an
/// epoch begins when epoch() of the epoch before has returned.
class Log {
 public:
  /// @param module holds its initial weights, from which `moved` is measured; outlives this object
  Log(const Options& options, const torch::nn::Module& module);

  /// A step has ended. On a GPU nothing waits for it.
  /// @param loss scalar, of the step
  void step(const torch::Tensor& loss);
  /// Mean of the losses that step() was given in this epoch: scalar float64 on the module's device.
  torch::Tensor epoch_loss();
  /// Ends an epoch and prints "[CPU0] Epoch 47 | Batchsize: 32 | Steps: 4 | Loss: 0.0123".
  /// Collective where there is a process group: rank 0 writes all ranks' steps to --metrics and,
  /// after the last epoch, learns their step times.
  /// @param epoch_loss as it is to be printed: the mean over the ranks
  /// @throws Error (1) if it or a weight is not finite: nothing is worth saving then
  void epoch(int64_t epoch, const DataLoader& loader, const torch::Tensor& epoch_loss);
  /// Prints the last line and ends --metrics. On rank 0.
  /// @throws Error (1) if --metrics cannot be written
  void report(const Evaluation& evaluation);

 private:
  /// What rank 0 must know of every rank to report; one value each, as ranks exchange them.
  struct OfRank;

  void write_steps();
  void gather_ranks();
  double moved() const;
  void print_utilisation() const;
  void write_summary(const Evaluation& evaluation, double moved, const std::string& digest) const;
  /// @return (world size, ...): row r is rank r's `values`
  torch::Tensor gather(const torch::Tensor& values) const;

  const Options& options_;
  const torch::nn::Module& module_;
  const ProcessGroup* process_group_;  // none: this is the only process
  torch::Device device_;
  std::string label_;  // "CPU0"
  std::vector<torch::Tensor> initial_weights_;  // copies on the host, on rank 0

  StepClock clock_;
  int64_t epoch_ = 0;
  int64_t global_batch_ = 0;  // fewer than asked for, if the data has fewer
  int64_t batch_size_ = 0;
  torch::Tensor of_ranks_;  // (world size, values of OfRank), after the last epoch

  std::unique_ptr<MetricsFile> metrics_file_;  // on rank 0, with --metrics, likewise the next
  std::unique_ptr<ProgressBar> progress_bar_;  // on a terminal
  std::unique_ptr<Trace> trace_;  // with --trace
  std::unique_ptr<GpuMonitor> gpu_monitor_;  // with --verbose on a GPU
  double busy_begin_ms_ = 0;  // processor time when this object was made, likewise the next
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace ddp
