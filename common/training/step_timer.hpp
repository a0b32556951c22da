// common/training/step_timer.hpp - how long a run's steps and their phases take.
#pragma once

#include <torch/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/data/step_observer.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// A step of this rank. Doubles only, since ranks exchange it as a row of a tensor.
struct StepTimes {
  double epoch = 0;
  double step_ms = 0;
  std::array<double, kPhases> phase_ms{};  ///< without exposed_comm_ms; undefined unless asked for
  double exposed_comm_ms = 0;  ///< waiting for communication that nothing hid
  double samples = 0;  ///< of all ranks
  double loss = 0;  ///< summed over micro-batches
};

/// Note [Timing]: a step lasts from the end of the step before to its own end: gathering the batch,
/// forward, backward, communication and update. The first step of an epoch starts at begin_epoch().
/// On a GPU all times are events on the stream, read between epochs, so the host never waits inside
/// one. Phases are recorded only with --metrics. The first steps are warm-up and left out of
/// medians. On the CPU begin(), add_loss() and end_step() do not allocate, but for the first step
/// of an epoch that is longer than those before.
class StepTimer {
 public:
  /// @param process_group has the clock of communication; none: this is the only process
  /// @param with_phases false: begin() does nothing
  StepTimer(const torch::Device& device, ProcessGroup* process_group, bool with_phases);

  void begin_epoch();
  /// Ends the phase before and starts `phase`. kData comes first and needs no call.
  void begin(Phase phase);
  /// @param loss scalar, of a micro-batch of the step at hand
  void add_loss(const torch::Tensor& loss);
  /// @param samples of all ranks. @param epoch_steps how many steps the epoch will have
  void end_step(double samples, int64_t epoch_steps);
  /// Waits for the device. @returns the steps since begin_epoch()
  std::vector<StepTimes> end_epoch(int64_t epoch);

  /// Of the last step, an entry per all-reduce.
  c10::ArrayRef<int64_t> all_reduce_bytes() const noexcept { return all_reduce_bytes_; }
  /// Of the last step: the weights of a sharded optimizer.
  int64_t gather_bytes() const noexcept { return gather_bytes_; }
  /// When the process' first step was done; none before.
  std::optional<std::chrono::system_clock::time_point> first_step_end() const noexcept {
    return first_step_end_;
  }

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
    double samples = 0;
    // On the host, where everything is known at once.
    std::array<double, kPhases> phase_ms{};
    double loss = 0;
    bool has_loss = false;
    // On a GPU.
    std::vector<std::pair<Phase, Mark>> phases;
    torch::Tensor device_loss;
  };

  Mark mark() const;
  double milliseconds(const Mark& from, const Mark& to) const;
  StepTimes times_of(const Step& step, int64_t epoch) const;
  void switch_phase(Phase phase, std::chrono::steady_clock::time_point now);
  void wait_for_device() const;

  torch::Device device_;
  ProcessGroup* process_group_;
  bool with_phases_;
  Step step_;  // the step at hand
  Phase phase_ = Phase::kData;  // the phase at hand and its beginning, on the host
  std::chrono::steady_clock::time_point phase_begin_;
  std::vector<Step> steps_;  // of the epoch at hand
  c10::SmallVector<int64_t, 16> all_reduce_bytes_;  // of the last step
  int64_t gather_bytes_ = 0;  // likewise
  std::optional<std::chrono::system_clock::time_point> first_step_end_;
};

}  // namespace ddp
