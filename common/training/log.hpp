// common/training/log.hpp - printed lines of training, and the files of --metrics and --trace.
#pragma once

#include <torch/nn/module.h>

#include "common/base/progress_bar.hpp"
#include "common/data/data_loader.hpp"
#include "common/device/gpu_monitor.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/default_group.hpp"
#include "common/training/metrics_file.hpp"
#include "common/training/step_clock.hpp"
#include "common/training/trace.hpp"

namespace ddp {

/// What a rank says of itself at the end of its last epoch. NaN: it has no such number.
struct RankReport {
  double median_ms = 0;  ///< of its steps
  double peak_rss_mib = 0;
  double peak_device_mib = 0;
  double startup_ms = 0;  ///< from the start of the process to the end of its first step
  double busy_cores = 0;
  double gpu_busy_percent = 0;
};

/// Results of a run: the last line, and part of the summary of --metrics.
struct RunSummary {
  Evaluation evaluation;
  double moved = 0;  ///< distance between the first and the last weights
  std::string digest;
  int64_t batch_size = 0;  ///< samples per process and step
  int64_t global_batch = 0;  ///< at most the samples of an epoch
  std::vector<RankReport> ranks;  ///< empty: the run only evaluated

  /// Of the slowest rank; NaN if the run only evaluated.
  double step_ms() const;
  double samples_per_second() const;
};

/// Times and prints a run, whose weights are the same without it. Its parts are members: a stage
/// needs a single object for the terminal and the files.
///
/// Note [Steps]: a step lasts from one call of step() to the next: fetching the batch, forward,
/// backward, communication and update. The first step of an epoch begins when epoch() of the epoch
/// before has returned.
class Log {
 public:
  /// @param module has its initial weights, for `moved`; must outlive this object
  Log(const Options& options, const torch::nn::Module& module);

  /// Notes the end of a step, without waiting for a GPU. @param loss scalar, the loss of the step
  void step(const torch::Tensor& loss);
  /// Mean of the losses of this epoch's steps: scalar float64 on the module's device; NaN without.
  torch::Tensor epoch_loss();
  /// Ends an epoch and prints "[CPU0] Epoch 47 | Batchsize: 32 | Steps: 4 | Loss: 0.0123".
  /// Collective if there is a process group: rank 0 writes all ranks' steps to --metrics and, after
  /// the last epoch, gets their step times.
  /// @param epoch_loss loss to print: the mean over the ranks
  /// @throws Error (1) if the loss or a weight is not finite, so that no snapshot is written
  void epoch(int64_t epoch, const DataLoader& loader, const torch::Tensor& epoch_loss,
             const CallSite& site = CallSite::current());
  /// Prints the last line and ends --metrics, on rank 0. @throws Error (1) if it cannot be written
  void report(const Evaluation& evaluation);

 private:
  void write_steps();
  void gather_reports();
  void write_summary() const;
  /// @return (world size, ...): row r is rank r's `values`
  torch::Tensor gather(const torch::Tensor& values) const;

  const Options& options_;
  const torch::nn::Module& module_;
  const ProcessGroup& group_;
  torch::Device device_;
  std::string label_;  // "CPU0"
  std::vector<torch::Tensor> initial_weights_;  // copies on the host, on rank 0

  StepClock clock_;
  int64_t epoch_ = 0;
  CallSite site_;  // of the running epoch()
  RunSummary summary_;

  std::unique_ptr<MetricsFile> metrics_file_;  // on rank 0, with --metrics
  std::unique_ptr<ProgressBar> progress_bar_;  // on rank 0, on a terminal
  std::unique_ptr<Trace> trace_;  // with --trace
  std::unique_ptr<GpuMonitor> gpu_monitor_;  // with --verbose on a GPU
  double busy_begin_ms_ = 0;  // processor time at the construction of this object
  std::chrono::steady_clock::time_point begin_;  // time of its construction
};

}  // namespace ddp
