// bench/progress.hpp - the progress of the work, on standard error.
#pragma once

#include "common/base/progress_bar.hpp"

namespace ddp::bench {

/// Draws a bar on a terminal; elsewhere prints a line now and then.
class Progress {
 public:
  /// @param runs number of launches; the estimate of the time left assumes equally long launches
  void begin(int runs);
  void start(const std::string& what);
  void finish() { ++done_; }
  void clear() { line_.hide(); }
  /// Prints a line above the bar.
  void note(const std::string& line);

 private:
  const bool on_terminal_ = stderr_is_terminal();
  StatusLine line_;
  int runs_ = 0;
  int done_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace ddp::bench
