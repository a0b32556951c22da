// common/base/progress_bar.hpp - the progress of work, on a terminal.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/base/patience.hpp"

namespace ddp {

/// True if standard error is a terminal that can redraw a line.
inline bool stderr_is_terminal() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

/// "[######............]": the share of `total` that is done.
inline std::string drawn_bar(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 24;
  const std::string filled(static_cast<size_t>(kWidth * std::min(done, total) / total), '#');
  return fmt::format("[{:.<{}}]", filled, kWidth);
}

/// Line on standard error that is drawn over the one before.
class StatusLine {
 public:
  ~StatusLine() { hide(); }
  void show(const std::string& text) {
    // A single write, so that other output does not mix with the line.
    std::fputs(("\r" + text + "\x1b[K").c_str(), stderr);
    shown_ = true;
  }
  /// Removes it, so that the next output begins a line.
  void hide() {
    if (shown_) {
      std::fputs("\r\x1b[K", stderr);
      shown_ = false;
    }
  }

 private:
  bool shown_ = false;
};

/// Progress of training, redrawn a few times a second.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total_epochs) : total_epochs_(total_epochs) {}

  /// @param step step in the epoch, from 1
  void draw(int64_t epoch, int64_t step) {
    ++steps_;
    const Clock::time_point now = Clock::now();
    if (now >= next_) {
      next_ = now + std::chrono::milliseconds(200);
      line_.show(fmt::format("epoch {}/{} {} step {}, {:.1f} steps/s", epoch + 1, total_epochs_,
                             drawn_bar(epoch, total_epochs_), step,
                             static_cast<double>(steps_) / seconds_since(begin_)));
    }
  }
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
