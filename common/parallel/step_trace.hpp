// common/parallel/step_trace.hpp - what a rank did in its last steps, moment by moment: --trace.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/data/step_observer.hpp"
#include "common/parallel/collective_log.hpp"

namespace ddp {

/// The phases of the last kSteps steps, and the collectives that were called in them. The clock of
/// a step and the process group write into it, on the thread that trains. On the CPU only: there a
/// collective is over when its work says so, and not when a stream comes to it.
class StepTrace {
 public:
  using Clock = std::chrono::steady_clock;  // which the processes of a host share
  static constexpr size_t kSteps = 16;

  /// A part of a step in which the rank did one thing. A step is its spans, without gaps.
  struct Span {
    const char* name;  ///< "data", "forward", "backward", "optimizer", or "communication": waiting
    Clock::time_point begin;
    Clock::time_point end;
  };
  /// Begun by the rank, and ended by whoever works on it: several at a time may be on their way.
  struct Collective {
    const char* kind;  ///< "all_reduce"
    int64_t bytes;
    CallSite site;
    Clock::time_point begin;
    /// Of time_since_epoch(); 0: not yet. Shared with the work, which may outlive this object.
    std::shared_ptr<std::atomic<Clock::rep>> end;
  };
  struct Step {
    int64_t epoch = 0;
    int64_t step = 0;  ///< of its epoch, from 0
    Clock::time_point begin;
    Clock::time_point end;
    std::vector<Span> spans;
    std::vector<Collective> collectives;
  };

  /// Of the steps to come.
  void set_epoch(int64_t epoch);
  /// What came since the last step is no part of one.
  void begin_step(Clock::time_point now);
  void begin_phase(Phase phase, Clock::time_point now);
  /// The rank waited for communication, in the midst of a phase, which now goes on.
  void add_wait(Clock::time_point begin, Clock::time_point end);
  void add_collective(const char* kind, const torch::Tensor& tensor, const CallSite& site,
                      Clock::time_point begin, c10d::Work& work);
  void end_step(Clock::time_point now);

  /// Those that ended, the oldest first.
  std::vector<const Step*> steps() const;

 private:
  Step& current() { return steps_[steps_done_ % steps_.size()]; }
  void begin_span(const char* name, Clock::time_point now);

  std::array<Step, kSteps + 1> steps_;  // used in turn, with the one at hand
  size_t steps_done_ = 0;
  int64_t epoch_ = 0;
  int64_t step_ = 0;
};

}  // namespace ddp
