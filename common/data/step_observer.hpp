// common/data/step_observer.hpp - what the parts of a training step tell whoever measures it.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>

namespace ddp {

struct Batch;

/// The parts of a step.
enum class Phase : size_t { kData, kForward, kBackward, kOptimizer };
inline constexpr size_t kPhases = 4;

/// The loader, the loss and the optimizer know the clock of a training run by this interface only,
/// and a loop needs no line for being measured. This class itself measures nothing.
///
/// In an epoch of a stage's loop: begin_epoch(), then for every batch begin_batch(),
/// begin(kForward), add_loss(), begin(kBackward), begin(kOptimizer) if the batch completes its
/// step, begin(kData), end_batch(); at last end_epoch(). FusedStep begins phases as often as it
/// enters them and adds its loss last.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// The loader is about to fetch the first batch.
  /// @param steps optimizer steps of the epoch, so that room for their times can be made before any
  virtual void begin_epoch([[maybe_unused]] int64_t steps) {}
  /// The batch is there.
  virtual void begin_batch(const Batch&) {}
  /// The phase before is over.
  virtual void begin(Phase) {}
  /// @param loss scalar, this batch's share of the step's loss, see ddp::loss()
  virtual void add_loss([[maybe_unused]] const torch::Tensor& loss) {}
  /// Before a layer's gradients are summed over the ranks: whether it is known already that all of
  /// this batch that are there are finite.
  virtual void gradients_are_finite([[maybe_unused]] bool known) {}
  /// All that was to be done with the batch is done: the loader is asked for the next one.
  virtual void end_batch(const Batch&) {}
  /// There is no next one.
  virtual void end_epoch() {}
};

/// Whom a loop tells that nobody measures.
inline StepObserver no_observer;

}  // namespace ddp
