// bench/micro/ranks.hpp - times pieces of work that all ranks do at the same time.
#pragma once

#include "common/parallel/default_group.hpp"

namespace ddp::micro {

/// Piece of work that a benchmark repeats.
struct Piece {
  std::function<void()> run;  ///< timed: on a CPU by the clock, on a GPU by events of its stream
  std::function<void()> prepare = [] {};  ///< called before each run(), not timed
  /// Called after the last run(). @return the fault of this rank's result; empty if it is right
  std::function<std::string()> check = [] { return ""; };
};

/// Ranks at work. Every rank must make the same calls in the same order.
class Ranks {
 public:
  /// @param group must outlive this object
  Ranks(const torch::Device& device, const ProcessGroup& group, double min_seconds)
      : device_(device), group_(group), min_seconds_(min_seconds) {}

  int rank() const { return group_.rank(); }
  int size() const { return group_.world_size(); }
  const torch::Device& device() const { return device_; }
  const ProcessGroup& group() const { return group_; }

  /// Warms up, then repeats `piece` for the minimum time, 10 to 10,000 times. All ranks repeat it
  /// equally often, and start each repetition together.
  /// @return seconds of the slowest rank: the largest of the ranks' medians
  /// @throws Error (1) on all ranks if a rank has a wrong result
  double measure(const Piece& piece) const;

 private:
  void line_up() const;
  std::vector<double> repeat(const Piece& piece, int64_t times) const;
  /// The same on a GPU, with queued work, as in a training step.
  std::vector<double> repeat_queued(const Piece& piece, int64_t times) const;
  /// Largest value of all ranks; NaN if a value is NaN.
  double largest(double value) const;
  void agree_that_right(const Piece& piece) const;

  torch::Device device_;
  const ProcessGroup& group_;
  double min_seconds_;
};

}  // namespace ddp::micro
