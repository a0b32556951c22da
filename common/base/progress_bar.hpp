// common/base/progress_bar.hpp - the progress of work, on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ddp {

/// True if standard error is a terminal that can redraw a line.
bool stderr_is_terminal();

/// "[######............]": the share of `total` that is done.
std::string drawn_bar(int64_t done, int64_t total);

/// Line on standard error that is drawn over the one before.
class StatusLine {
 public:
  ~StatusLine() { hide(); }
  void show(const std::string& text);
  /// Removes it, so that the next output begins a line.
  void hide();

 private:
  bool shown_ = false;
};

/// Progress of training, redrawn a few times a second.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total_epochs) : total_epochs_(total_epochs) {}

  /// @param step step in the epoch, from 1
  void draw(int64_t epoch, int64_t step);
  void hide() { line_.hide(); }

 private:
  using Clock = std::chrono::steady_clock;

  int64_t total_epochs_;
  StatusLine line_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_;
  int64_t steps_ = 0;
};

}  // namespace ddp
