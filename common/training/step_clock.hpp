// common/training/step_clock.hpp - measures the steps of a run.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace ddp {

/// A step, which ranks exchange as three numbers of a tensor.
struct Step {
  double end_ns = 0;  ///< time on the host's monotonic clock, which all its processes share
  double step_ms = 0;
  double loss = 0;
};

/// Note [Clock of a GPU]: on a GPU the end of a step is an event on the stream, and its loss stays
/// on the device. Both are read after the epoch, so the host does not wait within an epoch.
class StepClock {
 public:
  static constexpr int64_t kKept = 1 << 18;

  /// Begins an epoch. @param device device of the steps and of their losses
  explicit StepClock(const torch::Device& device);

  /// Begins the first step of an epoch, once the device is idle.
  void begin_epoch();
  /// @param loss () of any number type, on the clock's device; its value is copied
  void end_step(const torch::Tensor& loss);
  /// Waits for the device. @return the epoch's steps, valid until begin_epoch()
  const std::vector<Step>& epoch_steps();
  int64_t steps_in_epoch() const noexcept { return epoch_count_; }

  int64_t steps() const noexcept { return steps_; }  ///< of the whole run
  /// Number of steps that median_ms() leaves out: at most half, so that short runs have a median.
  int64_t warmup_steps() const;
  /// Of the last kKept steps; NaN without steps.
  double median_ms() const;
  /// End of this process's first step.
  std::optional<std::chrono::system_clock::time_point> first_step_end() const { return first_end_; }

 private:
  using Clock = std::chrono::steady_clock;

  void record(double end_ns, double step_ms, double loss);

  torch::Device device_;
  Clock::time_point last_end_;
  int64_t epoch_count_ = 0;
  std::vector<Step> epoch_steps_;
  int64_t steps_ = 0;
  std::vector<float> last_ms_;  ///< of at most kKept steps: a long run must not grow
  std::deque<c10::Event> events_;  // on a GPU: the epoch's beginning and the ends of its steps
  std::vector<torch::Tensor> losses_;  // on a GPU: the losses of the epoch's steps
  std::optional<std::chrono::system_clock::time_point> first_end_;
};

}  // namespace ddp
