// bench/micro/ranks.hpp - ranks that do the same thing at the same time, and how it is timed.
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

#include "common/parallel/process_group.hpp"

namespace ddp::micro {

/// What a benchmark repeats.
struct Piece {
  /// Timed on a CPU by the clock, on a GPU by events of its stream.
  std::function<void()> run;
  /// Before each run(), not timed.
  std::function<void()> prepare = [] {};
  /// After a run(). @return what is wrong with this rank's result; empty if nothing is
  std::function<std::string()> check = [] { return ""; };
};

/// Every rank makes the same calls in the same order.
class Ranks {
 public:
  /// @param group must outlive this object; nullptr: one rank
  Ranks(const torch::Device& device, const ProcessGroup* group, double min_seconds)
      : device_(device), group_(group), min_seconds_(min_seconds) {}

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int size() const { return group_ == nullptr ? 1 : group_->world_size(); }
  const torch::Device& device() const { return device_; }
  /// With several ranks.
  const ProcessGroup& group() const { return *group_; }

  /// Warms up, then repeats `piece` for the minimum time, 10 to 10,000 times, equally often on all
  /// ranks. Each time all ranks start together.
  /// @return seconds of the slowest rank: the largest of the ranks' medians
  /// @throws Error (1) on all ranks if one of them has a wrong result
  double measure(const Piece& piece) const;

 private:
  void line_up() const;
  void synchronize() const;
  std::vector<double> repeat(const Piece& piece, int64_t times) const;
  /// On a GPU, whose work is queued as in a training step.
  std::vector<double> repeat_queued(const Piece& piece, int64_t times) const;
  /// The largest value of all ranks; NaN if one of them is NaN.
  double largest(double value) const;
  void agree_that_right(const Piece& piece) const;

  torch::Device device_;
  const ProcessGroup* group_;
  double min_seconds_;
};

}  // namespace ddp::micro
