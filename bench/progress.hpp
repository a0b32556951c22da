// bench/progress.hpp - the progress of the work, on standard error.
#pragma once

#include <cmath>

#include "common/base/patience.hpp"
#include "common/base/progress_bar.hpp"

namespace ddp::bench {

/// Draws a bar on a terminal; elsewhere prints a line now and then.
class Progress {
 public:
  /// @param runs number of launches; the estimate of the time left assumes equally long launches
  void begin(int runs) {
    runs_ = runs;
    begin_ = last_line_ = std::chrono::steady_clock::now();
  }

  void start(const std::string& what) {
    constexpr double kSecondsBetweenLines = 15;
    const double left_s = seconds_since(begin_) / std::max(done_, 1) * (runs_ - done_);
    const std::string left =
        done_ < 3 ? "" : fmt::format(", about {:.0f} s left", std::ceil(left_s));
    if (on_terminal_) {
      line_.show(fmt::format("{:.99}", fmt::format("{} {}/{}{}  {}", drawn_bar(done_, runs_), done_,
                                                   runs_, left, what)));
    } else if (seconds_since(last_line_) >= kSecondsBetweenLines) {
      last_line_ = std::chrono::steady_clock::now();
      note(fmt::format("{} of {} runs{}", done_, runs_, left));
    }
  }

  void finish() { ++done_; }
  void clear() { line_.hide(); }

  /// Prints a line above the bar.
  void note(const std::string& line) {
    line_.hide();
    std::fputs((line + "\n").c_str(), stderr);
  }

 private:
  const bool on_terminal_ = stderr_is_terminal();
  StatusLine line_;
  int runs_ = 0;
  int done_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace ddp::bench
