// common/base/progress_bar.hpp - the progress of training, on a terminal.
#pragma once

#include <chrono>
#include <cstdint>

namespace ddp {

/// True if standard error is a terminal that can redraw a line.
bool stderr_is_terminal();

/// Line on stderr that is redrawn a few times a second.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total_epochs) : total_epochs_(total_epochs) {}
  ~ProgressBar() { hide(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// @param step step in the epoch, from 1
  void draw(int64_t epoch, int64_t step);
  /// Removes the bar, so that the next output begins a line.
  void hide();

 private:
  using Clock = std::chrono::steady_clock;

  int64_t total_epochs_;
  bool drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_;
  int64_t steps_ = 0;
};

}  // namespace ddp
