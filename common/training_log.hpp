// common/training_log.hpp - times the steps and reports them: the only clock in the project.
#pragma once

#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/data_loader.hpp"
#include "common/dataset.hpp"
#include "common/mlp.hpp"
#include "common/options.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// The parts of a step. kData, fetching the batch, comes first and needs no call: it lasts until
/// begin(kForward).
enum class Phase : size_t { kData, kForward, kBackward, kOptimizer };
inline constexpr size_t kPhases = 4;

/// Note [Timing]: a step lasts from the end of the step before to its own end: gathering the batch,
/// forward, backward, communication and update. The first step of an epoch starts at begin_epoch().
/// On a GPU all times are events on the stream, read between epochs, so the host never waits inside
/// one. Phases are recorded only with --metrics. The first steps are warm-up and left out of
/// medians. On the CPU begin() and end() do not allocate, but for the first step of an epoch that
/// is longer than those before.
class TrainingLog {
 public:
  /// @param model already holds its initial weights: `moved` is measured from here
  /// @param process_group losses and times are reduced over it; none: this is the only process
  TrainingLog(const Options& options, Mlp model, const torch::Device& device,
              ProcessGroup* process_group = nullptr);

  void begin_epoch(int64_t epoch);
  /// Ends the phase before and starts `phase`.
  void begin(Phase phase);
  /// Ends a batch, and the step if the batch completes it. @param loss scalar, see ddp::loss()
  void end(const Batch& batch, const torch::Tensor& loss);
  /// Prints "[CPU0] Epoch 47 | Batchsize: 32 | Steps: 4 | Loss: 0.0123", the mean loss of the epoch
  /// over all ranks.
  /// @throws Error (1), on all ranks, if it or a weight is not finite: nothing is worth saving then
  void end_epoch();
  /// True if a signal had asked any rank to stop when the epoch ended; the same on every rank.
  bool stop_asked() const noexcept { return stop_asked_; }

  /// Evaluates the model on every held-out sample once, checks that all ranks hold the same
  /// weights, prints the last line on rank 0 and writes --metrics.
  /// @throws Error (1) if a weight is not finite, or if the ranks' weights differ
  void report(const Dataset& dataset);

 private:
  /// A moment, on the host or, for a GPU, on its stream.
  struct Mark {
    std::chrono::steady_clock::time_point host;
    std::optional<c10::Event> device;
  };
  /// A step as it happens; its times can be read when the device is idle. With --accumulate a phase
  /// occurs several times.
  struct Step {
    Mark begin;
    Mark end;
    CommunicationWait wait;
    double samples = 0;  // of all ranks
    // On the host, where everything is known at once.
    std::array<double, kPhases> phase_ms{};
    double loss = 0;  // summed over micro-batches
    // On a GPU.
    std::vector<std::pair<Phase, Mark>> phases;
    torch::Tensor device_loss;
  };
  /// The same as numbers.
  struct Row {
    int64_t epoch;
    double step_ms;
    double samples;  // of all ranks
    std::array<double, kPhases> phase_ms;
    double exposed_comm_ms;
    double loss;
  };
  /// What the process used while it made steps.
  struct Usage {
    double cpu_ms = 0;  // over all its threads
    double wall_ms = 0;
  };

  Mark mark() const;
  double milliseconds(const Mark& from, const Mark& to) const;
  Row to_row(const Step& step) const;
  static Usage read_clocks();
  void add_usage();
  void switch_phase(Phase phase, std::chrono::steady_clock::time_point now);
  void make_room(int64_t steps);
  torch::Tensor sum_over_ranks(std::vector<double> values) const;
  torch::Tensor gather_over_ranks(const torch::Tensor& rows) const;
  double slowest_median_step_ms() const;
  double median_step_samples() const;  // fewer than the global batch if the data is
  void check_weights(double moved, const std::string& hash) const;
  void write_metrics(const std::string& summary) const;

  const Options& options_;
  Mlp model_;
  torch::Device device_;
  ProcessGroup* process_group_;
  int rank_;
  int world_size_;
  std::string label_;  // "CPU0"
  torch::Tensor initial_weights_;

  int64_t epoch_ = 0;
  bool stop_asked_ = false;
  Step step_;  // the step at hand
  Phase phase_ = Phase::kData;  // the phase at hand and its beginning, on the host
  std::chrono::steady_clock::time_point phase_begin_;
  std::vector<Step> steps_;  // of the epoch at hand
  std::vector<Row> rows_;  // of all epochs
  c10::SmallVector<int64_t, 16> all_reduce_bytes_;  // of the last step
  int64_t gather_bytes_ = 0;  // likewise
  Usage epoch_begin_;  // readings of the clocks
  Usage usage_;  // without the first epoch, which warms up, if there are more
  std::optional<std::chrono::system_clock::time_point> first_step_end_;
};

}  // namespace ddp
