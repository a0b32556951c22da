// common/training/training_log.hpp - what training prints, and what --metrics writes.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/process_usage.hpp"
#include "common/data/data_loader.hpp"
#include "common/data/dataset.hpp"
#include "common/launch/options.hpp"
#include "common/model/mlp.hpp"
#include "common/parallel/process_group.hpp"
#include "common/training/step_timer.hpp"

namespace ddp {

/// See Note [The clock] in training.hpp.
class TrainingLog final : public StepObserver {
 public:
  /// @param model already holds its initial weights: `moved` is measured from here
  /// @param process_group losses and times are reduced over it; none: this is the only process
  TrainingLog(const Options& options, Mlp model, const torch::Device& device,
              ProcessGroup* process_group = nullptr);

  /// The epoch that begin_epoch() is about to begin.
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  void begin_epoch() override;
  void begin_batch(const Batch&) override {}
  void begin(Phase phase) override { timer_.begin(phase); }
  void add_loss(const torch::Tensor& loss) override { timer_.add_loss(loss); }
  void end_batch(const Batch& batch) override;
  /// Prints "[CPU0] Epoch 47 | Batchsize: 32 | Steps: 4 | Loss: 0.0123", the mean loss of the epoch
  /// over all ranks.
  /// @throws Error (1), on all ranks, if it or a weight is not finite: nothing is worth saving then
  void end_epoch() override;
  /// True if a signal had asked any rank to stop when the epoch ended; the same on every rank.
  bool stop_asked() const noexcept { return stop_asked_; }

  /// Evaluates the model on every held-out sample once, checks that all ranks hold the same
  /// weights, prints the last line on rank 0 and writes --metrics.
  /// @throws Error (1) if a weight is not finite, if the ranks' weights differ, or if --metrics
  /// cannot be written
  void report(const Dataset& dataset);

 private:
  /// What the last line says; the same on every rank.
  struct Result {
    double moved;
    double loss;
    double accuracy;  // not a number in a regression
    std::string digest;
    double step_ms;  // not a number if no step was made, likewise the next
    double samples_per_second;
  };

  Result result(const Dataset& dataset);
  void check_weights(double moved, const std::string& hash) const;
  nlohmann::json summary(const Dataset& dataset, const Result& result) const;
  void write_metrics(const torch::Tensor& steps_of_ranks, const nlohmann::json& summary) const;
  /// @return (world size, ...): row r is rank r's `values`
  torch::Tensor gather_over_ranks(const torch::Tensor& values) const;
  torch::Tensor gather_over_ranks(const std::vector<double>& values) const;

  const Options& options_;
  Mlp model_;
  torch::Device device_;
  ProcessGroup* process_group_;
  int rank_;
  int world_size_;
  std::string label_;  // "CPU0"
  torch::Tensor initial_weights_;
  StepTimer timer_;

  int64_t epoch_ = 0;
  bool stop_asked_ = false;
  std::vector<StepTimes> steps_;  // of all epochs
  int epochs_done_ = 0;
  ProcessTimes epoch_begin_;
  ProcessTimes usage_;  // without the first epoch, which warms up, if there are more
};

}  // namespace ddp
