// common/training/step_clock.hpp - how long the steps of a run take.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace ddp {

/// One step. Ranks exchange it as three numbers of a tensor.
struct Step {
  double end_ns = 0;  ///< on the host's monotonic clock, which its processes share
  double step_ms = 0;
  double loss = 0;
};

/// Note [Clock of a GPU]: there the end of a step is an event on the stream, and its loss stays on
/// the device. Both are read when the epoch is over, so the host waits for nothing inside an epoch.
class StepClock {
 public:
  explicit StepClock(const torch::Device& device);

  /// The next step begins now, when the device is idle.
  void begin_epoch();
  void end_step(const torch::Tensor& loss);
  /// Waits for the device. @return the epoch's steps, until begin_epoch()
  const std::vector<Step>& epoch_steps();
  /// Of the epoch, also while it runs.
  int64_t steps_in_epoch() const noexcept { return epoch_count_; }

  /// Of the whole run.
  int64_t steps() const noexcept { return static_cast<int64_t>(all_ms_.size()); }
  /// Steps that median_ms() leaves out: at most half of them, so that a short run has a time.
  int64_t warmup_steps() const;
  /// Not a number without steps.
  double median_ms() const;
  /// When this process' first step was done.
  std::optional<std::chrono::system_clock::time_point> first_step_end() const { return first_end_; }

 private:
  using Clock = std::chrono::steady_clock;

  void record(double end_ns, double step_ms, double loss);

  torch::Device device_;
  Clock::time_point last_end_;
  int64_t epoch_count_ = 0;
  std::vector<Step> epoch_steps_;
  std::vector<float> all_ms_;
  std::deque<c10::Event> events_;  // on a GPU: the epoch's beginning and the ends of its steps
  std::vector<torch::Tensor> losses_;  // likewise
  std::optional<std::chrono::system_clock::time_point> first_end_;
};

}  // namespace ddp
