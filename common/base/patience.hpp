// common/base/patience.hpp - the limit of a wait, which does not run while the process is stopped.
#pragma once

#include <algorithm>
#include <chrono>

namespace ddp {

/// Limit of a wait in short intervals. A whole job can be suspended (SIGSTOP, Slurm's preemption,
/// Ctrl-Z) for longer than the limit, and must go on. So the time between two looks counts only up
/// to a second.
class Patience {
 public:
  explicit Patience(std::chrono::duration<double> limit) : left_(limit) {}

  /// True once the limit is reached. Call it several times per second.
  bool is_over() {
    constexpr std::chrono::duration<double> kLongest{1};
    const auto now = std::chrono::steady_clock::now();
    left_ -= std::min<std::chrono::duration<double>>(now - looked_, kLongest);
    looked_ = now;
    return left_.count() <= 0;
  }

 private:
  std::chrono::duration<double> left_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace ddp
