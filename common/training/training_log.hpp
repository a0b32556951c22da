// common/training/training_log.hpp - what training prints, what --metrics and --trace write, and
// what --check looks at.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/process_usage.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/launch/gpu_monitor.hpp"
#include "common/launch/options.hpp"
#include "common/model/flat_parameters.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/event_file.hpp"
#include "common/training/initial_weights.hpp"
#include "common/training/metrics_file.hpp"
#include "common/training/progress_bar.hpp"
#include "common/training/step_timer.hpp"
#include "common/training/trace_file.hpp"

namespace ddp {

/// See Note [The clock] in training.hpp.
class TrainingLog final : public StepObserver {
 public:
  /// @param model already holds its initial weights: `moved` is measured from here
  /// @param process_group losses and times are reduced over it; none: this is the only process.
  /// With --check finite whatever starts to sum this rank's gradients over the ranks throws Error
  /// (1) if they are not finite; one process's parameters move into flat storage for that
  /// @throws UsageError for --trace on a GPU
  TrainingLog(const Options& options, Mlp model, const torch::Device& device,
              ProcessGroup* process_group = nullptr);
  ~TrainingLog() override;
  TrainingLog(const TrainingLog&) = delete;
  TrainingLog& operator=(const TrainingLog&) = delete;

  /// What this process computes on; with --verbose the GPUs among it are watched from now on.
  void set_devices(const std::vector<torch::Device>& devices);
  /// Training begins, or goes on after so many epochs: --metrics and --trace are opened.
  /// @throws Error (1), on rank 0, if one cannot be
  void begin_training(int64_t epochs_done);
  /// The epoch that begin_epoch() is about to begin.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  void begin_epoch(int64_t steps) override;
  /// Which samples this rank reads first in the epoch that is about to begin.
  void print_order(const torch::Tensor& indices) const;
  void begin_batch(const Batch&) override {}
  /// @throws Error (1) as add_loss() does, of the gradients of a run of one process
  void begin(Phase phase) override {
    if (flat_ && phase == Phase::kOptimizer && !gradients_are_finite_) {
      expect_finite_gradients();
    }
    timer_.begin(phase);
  }
  void gradients_are_finite(bool known) override { gradients_are_finite_ = known; }
  /// @throws Error (1), on this rank alone, with --check finite if the step's loss is not finite
  void add_loss(const torch::Tensor& loss) override;
  /// @throws Error (1), on all ranks, with --check weights if their weights differ
  void end_batch(const Batch& batch) override;
  /// Prints "[CPU0] Epoch 47 | Batchsize: 32 | Steps: 4 | Loss: 0.0123", the mean loss of the epoch
  /// over all ranks.
  /// @throws Error (1), on all ranks, if it or a weight is not finite: nothing is worth saving then
  void end_epoch() override;
  /// @param expect_mirrored throws if replicas of one process differ; called where ranks' weights
  /// are compared
  void also_compare(std::function<void()> expect_mirrored) {
    expect_mirrored_ = std::move(expect_mirrored);
  }
  /// True if a signal had asked any rank to stop when the epoch ended; the same on every rank.
  bool stop_asked() const noexcept { return stop_asked_; }
  /// Collective. To be called before the epoch at hand is saved: with --check weights compares the
  /// ranks' weights, and writes the epoch's steps to --metrics.
  void before_snapshot();

  /// Collective, after end_epoch(). Evaluates the model, and writes the epoch to --tensorboard.
  /// @throws Error (1), on rank 0, if it cannot be written
  void write_events(const Dataset& dataset, double learning_rate);

  /// Evaluates the model on every held-out sample once, checks that all ranks hold the same
  /// weights, prints the last line on rank 0, names a slow rank on stderr, ends --metrics and
  /// writes --trace. With --verbose this rank says on stderr how busy it was.
  /// @throws Error (1) if a weight is not finite, if the ranks' weights differ, or if one of
  /// the files cannot be written
  void report(const Dataset& dataset);

 private:
  /// What the last line says; the same on every rank.
  struct Result {
    double moved;  // on rank 0
    double loss;
    double accuracy;  // not a number in a regression
    std::string digest;
    double step_ms;  // not a number if no step was made, likewise the next
    double samples_per_second;
  };

  Result result(const Dataset& dataset);
  /// On every held-out sample once; the sums over all ranks.
  Evaluation evaluate_over_ranks(const Dataset& dataset);
  void print_utilisation();
  void add_step(const StepTimes& times);
  /// @throws Error (1) that says where in training
  [[noreturn]] void fail_in_step(const std::string& what) const;
  void expect_finite_loss() const;
  void expect_finite_gradients() const;
  void expect_finite(const torch::Tensor& own_gradients) const;
  /// @throws as fail_in_step(), naming the parameter
  void expect_finite_weights() const;
  void check_weights() const;
  void compare_weights(const std::string& hash) const;
  void write_steps();
  void write_trace(const Dataset& dataset);
  void name_slow_rank() const;
  nlohmann::json summary(const Dataset& dataset, const Result& result) const;
  /// @return (world size, ...): row r is rank r's `values`
  torch::Tensor gather_over_ranks(const torch::Tensor& values) const;
  torch::Tensor gather_over_ranks(const std::vector<double>& values) const;
  /// What LibTorch took of the GPU's memory.
  double peak_device_mib() const;

  const Options& options_;
  Mlp model_;
  torch::Device device_;
  ProcessGroup* process_group_;
  int rank_;
  int world_size_;
  std::string label_;  // "CPU0"
  std::unique_ptr<InitialWeights> initial_weights_;  // on rank 0, likewise the next
  std::unique_ptr<MetricsFile> metrics_file_;  // once training has begun, with --metrics
  std::unique_ptr<TraceFile> trace_file_;  // likewise, with --trace
  std::unique_ptr<EventFile> event_file_;  // once there is an epoch to write, with --tensorboard
  std::atomic<int64_t> visible_steps_ = 0;  // of the epoch at hand, for the bar's thread
  std::unique_ptr<ProgressBar> progress_bar_;  // on rank 0, on a terminal
  std::unique_ptr<StepTrace> trace_;  // with --trace
  StepTimer timer_;
  std::optional<FlatParameters> flat_;  // with --check finite, if this is the only rank
  std::function<void()> expect_mirrored_;
  bool gradients_are_finite_ = false;  // those at hand: known without a look

  int64_t epoch_ = 0;
  bool stop_asked_ = false;
  int64_t steps_ = 0;  // of all epochs
  int64_t epoch_steps_ = 0;  // of the epoch at hand, likewise the next two
  double epoch_loss_ = 0;  // summed over samples
  double epoch_samples_ = 0;
  double epoch_mean_loss_ = 0;  // over all ranks, when the epoch is over, likewise the next
  double epoch_ms_ = 0;
  std::vector<float> step_losses_;  // of this rank and the epoch at hand, for --tensorboard
  StepMedian step_ms_;
  StepMedian samples_;
  StepMedian busy_ms_;  // without waiting for communication, of the steps in which that is known
  std::vector<StepTimes> unwritten_steps_;  // for --metrics
  int epochs_done_ = 0;
  ProcessTimes epoch_begin_;
  ProcessTimes usage_;  // without the first epoch, which warms up, if there are more
  size_t replicas_ = 1;  // on the CPU
  std::map<int, GpuMonitor> gpus_;  // that are watched, by index
};

}  // namespace ddp
