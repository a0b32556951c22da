// common/training/step_timer.hpp - how long a run's steps and their phases take.
#pragma once

#include <torch/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/data/step_observer.hpp"
#include "common/parallel/process_group.hpp"
#include "common/parallel/step_trace.hpp"

namespace ddp {

/// A step of this rank. Doubles only, since ranks exchange it as a row of a tensor.
struct StepTimes {
  double epoch = 0;
  double step_ms = 0;
  double end_ms = 0;  ///< when it ended, on the host's monotonic clock, which its processes share
  std::array<double, kPhases> phase_ms{};  ///< without exposed_comm_ms; undefined unless asked for
  double exposed_comm_ms = 0;  ///< waiting for communication that nothing hid; NaN: not measured
  double samples = 0;  ///< of all ranks
  double loss = 0;  ///< summed over micro-batches
};

/// The median of any number of steps, the first of which are warm-up and left out, in memory that
/// does not grow. Up to kExactSteps it is exact. Beyond, values are counted in buckets that are
/// 2^-10 of their lower end wide, and the mean of those in the median's bucket is given: at most
/// 0.1 % away from the exact one if that is between 2^-12 and 2^24.
class StepMedian {
 public:
  static constexpr int64_t kExactSteps = 4096;

  StepMedian();
  /// @param value >= 0
  void add(double value);
  /// Steps so far, warm-up included.
  int64_t steps() const noexcept { return steps_; }
  /// At most half of the steps: a short run is still measured.
  int64_t warmup_steps() const noexcept;
  /// Not a number without steps.
  double median() const;

 private:
  struct Bucket {
    int64_t values = 0;
    double sum = 0;
  };

  double mean_of(int64_t rank) const;

  int64_t steps_ = 0;
  std::vector<double> first_;  // of them
  std::vector<Bucket> buckets_;  // of all without the warm-up
};

/// Note [Timing]: a step lasts from the end of the step before to its own end: gathering the batch,
/// forward, backward, communication and update. The first step of an epoch starts at begin_epoch().
/// On a GPU all times are events on the stream, read between epochs, so the host never waits inside
/// one; the host's clock is read where the epoch begins and the device is idle. Phases are recorded
/// only with --metrics or --trace. On the CPU nothing here allocates or keeps a step.
///
/// Note [Sampled waits]: to time the waits for communication costs two readings of the clock for
/// each, so without those it is done in one of kWaitStride steps only, and not always in the
/// same step of an epoch: the first has cold caches.
class StepTimer {
 public:
  enum class Detail {
    kSteps,  ///< begin() does nothing, exposed_comm_ms is not known
    kSampledWaits,  ///< likewise, but see Note [Sampled waits]
    kAll  ///< the waits of every step, and phases
  };
  using Record = std::function<void(const StepTimes&)>;

  /// @param process_group has the clock of communication; none: this is the only process
  /// @param record is given every step, without its epoch: on the CPU when the step ends, on a GPU
  /// when the epoch does
  /// @param trace is told of phases, on the CPU and with Detail::kAll
  StepTimer(const torch::Device& device, ProcessGroup* process_group, Detail detail, Record record,
            StepTrace* trace = nullptr);

  /// @param steps how many the epoch will have
  void begin_epoch(int64_t steps);
  /// The step at hand begins only now: what came since the last one is no part of it.
  void begin_step_anew();
  /// Ends the phase before and starts `phase`. kData comes first and needs no call.
  void begin(Phase phase);
  /// @param loss scalar, of a micro-batch of the step at hand
  void add_loss(const torch::Tensor& loss);
  /// Of the step at hand so far. On a GPU this waits for the device.
  double loss() const { return loss_of(step_); }
  /// @param samples of all ranks
  void end_step(double samples);
  /// Waits for the device.
  void end_epoch();

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
    const c10::Event* device = nullptr;  // of events_
  };
  /// A step as it happens; its times can be read when the device is idle. With --accumulate a phase
  /// occurs several times.
  struct Step {
    Mark begin;
    Mark end;
    bool wait_timed = false;
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

  Mark mark();
  double milliseconds(const Mark& from, const Mark& to) const;
  double loss_of(const Step& step) const;
  StepTimes times_of(const Step& step, double end_ms, double loss) const;
  void choose_wait_timer();
  void switch_phase(Phase phase, std::chrono::steady_clock::time_point now);
  void wait_for_device() const;

  torch::Device device_;
  ProcessGroup* process_group_;
  Detail detail_;
  Record record_;
  StepTrace* trace_;
  int64_t steps_done_ = 0;
  Step step_;  // the step at hand
  Phase phase_ = Phase::kData;  // the phase at hand and its beginning, on the host
  std::chrono::steady_clock::time_point phase_begin_;
  std::vector<Step> steps_;  // of the epoch at hand, on a GPU
  Mark epoch_begin_;  // likewise; on the host, too
  std::deque<c10::Event> events_;  // likewise; every epoch records the same ones
  size_t events_used_ = 0;
  c10::SmallVector<int64_t, 16> all_reduce_bytes_;  // of the last step
  int64_t gather_bytes_ = 0;  // likewise
  std::optional<std::chrono::system_clock::time_point> first_step_end_;
};

}  // namespace ddp
