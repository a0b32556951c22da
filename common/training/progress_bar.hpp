// common/training/progress_bar.hpp - how far training is, on a terminal.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace ddp {

/// A line on stderr that is redrawn a few times a second, by a thread of its own: a step does
/// nothing for it but count.
class ProgressBar {
 public:
  /// @param steps of the epoch at hand that are done; outlives this object
  ProgressBar(int64_t total_epochs, const std::atomic<int64_t>& steps);
  ~ProgressBar() { hide(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// From its first step on the bar may be drawn: by then all ranks have printed what they had to
  /// say of the epoch before.
  void begin_epoch(int64_t epoch, int64_t steps);
  /// Takes the bar away until the next epoch: what is printed now begins a line.
  void hide();

 private:
  using Clock = std::chrono::steady_clock;

  void redraw(const std::stop_token& stop);
  std::string line(int64_t steps_done) const;

  const int64_t total_epochs_;
  const std::atomic<int64_t>& steps_done_;
  std::mutex mutex_;  // of what follows
  bool in_epoch_ = false;
  bool drawn_ = false;
  int64_t epoch_ = 0;
  int64_t epoch_steps_ = 0;
  int64_t first_epoch_ = -1;  // where this process began, and when
  Clock::time_point begin_;
  std::jthread thread_;  // the last to come and the first to go
};

}  // namespace ddp
