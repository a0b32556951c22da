// bench/micro/ranks.hpp - ranks that do the same thing at the same time, and how it is timed.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/micro/options.hpp"
#include "common/backends/shm/shm_segment.hpp"
#include "common/launch/launch_environment.hpp"
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

/// Every rank makes the same calls in the same order. One backend at a time connects the ranks: an
/// idle one may keep threads busy.
class Ranks {
 public:
  /// Not connected yet. @param options must outlive this object
  Ranks(const MicroOptions& options, LaunchEnvironment environment);
  /// Of a group that exists, which must outlive this object.
  Ranks(const MicroOptions& options, const ProcessGroup& group);

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world_size; }
  const torch::Device& device() const { return device_; }
  /// Connects the ranks by this backend unless they are. With one rank: nothing.
  void connect(const std::string& backend);
  void disconnect();
  /// After connect(), with several ranks.
  const ProcessGroup& group() const { return *group_; }

  /// Warms up, then repeats `piece` for --min-seconds, 10 to 10,000 times, equally often on all
  /// ranks. Each time all ranks start together.
  /// @return seconds of the slowest rank: the largest of the ranks' medians
  /// @throws Error (1) on all ranks if one of them has a wrong result
  double measure(const Piece& piece);

 private:
  /// Note [Start line]: a backend's own barrier lets the ranks go some ten microseconds apart,
  /// which is more than a whole small all-reduce, and it wakes the backend's threads. A counter in
  /// shared memory that all ranks watch lets them go within one microsecond. Ranks on several hosts
  /// use the backend's barrier.
  struct StartLine {
    alignas(64) std::atomic<uint32_t> arrived;
    alignas(64) std::atomic<uint32_t> round;
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free);

  void share_start_line();
  void line_up() const;
  void synchronize() const;
  std::vector<double> repeat(const Piece& piece, int64_t times) const;
  /// On a GPU, whose work is queued as in a training step.
  std::vector<double> repeat_queued(const Piece& piece, int64_t times) const;
  /// The largest value of all ranks; NaN if one of them is NaN.
  double largest(double value) const;
  void agree_that_right(const Piece& piece) const;

  const MicroOptions& options_;
  LaunchEnvironment environment_;
  torch::Device device_;
  std::unique_ptr<ProcessGroup> own_group_;
  const ProcessGroup* group_ = nullptr;  // none: not connected, or one rank
  std::shared_ptr<shm::Segment> segment_;
  StartLine* start_line_ = nullptr;  // in the segment; none with one rank or several hosts
};

}  // namespace ddp::micro
