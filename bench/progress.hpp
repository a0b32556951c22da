// bench/progress.hpp - how far the work is, on standard error.
#pragma once

#include <chrono>
#include <string>

namespace ddp::bench {

/// A bar on a terminal, else a line now and then.
class Progress {
 public:
  Progress();

  /// @param runs launches that are still to come, of equal length: only roughly right
  void begin(int runs);
  /// @param what is running now
  void start(const std::string& what);
  void finish() { ++done_; }
  void end() { clear(); }
  /// A line that stays.
  void note(const std::string& line);

 private:
  void clear();

  const bool on_terminal_;
  bool drawn_ = false;
  int runs_ = 0;
  int done_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_line_;
};

}  // namespace ddp::bench
