// bench/progress.hpp - how far the work is, on standard error.
#pragma once

#include <chrono>
#include <string>

namespace ddp::bench {

/// A bar on a terminal, elsewhere a line now and then.
class Progress {
 public:
  Progress();

  /// @param runs launches to come; the time left is estimated as if they took equally long
  void begin(int runs);
  /// @param what is running now
  void start(const std::string& what);
  void finish() { ++done_; }
  void clear();  ///< takes the bar away
  /// Prints a line above the bar.
  void note(const std::string& line);

 private:
  const bool on_terminal_;
  bool drawn_ = false;
  int runs_ = 0;
  int done_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace ddp::bench
