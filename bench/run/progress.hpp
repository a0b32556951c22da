// bench/run/progress.hpp - says on standard error how far the work is and how long it still takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace ddp::bench {

/// A bar that is redrawn in place on a terminal, else a line now and then.
class Progress {
 public:
  Progress();

  /// A list of `count` runs that take `expected_s` together. That need only be roughly right: it is
  /// corrected by what the runs really take.
  /// @param later_s what follows after this list
  void begin(const std::string& phase, std::size_t count, double expected_s, double later_s);
  void start_run(const std::string& label, double expected_s);
  /// Redraws the bar while a run goes on; cheap enough to be called several times a second.
  void tick();
  void finish_run(double seconds);
  /// Ends the list and clears the bar.
  void end();
  /// A line that stays.
  void note(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;
  struct Runs {
    std::string phase{};
    std::size_t count = 0;
    std::size_t done = 0;
    double open_s = 0;  ///< expected time of the runs that have not begun
    double later_s = 0;
    double finished_expected_s = 0;
    double finished_actual_s = 0;
    std::string current{};  ///< the one that goes on
    double current_s = 0;  ///< its expected time; 0: none goes on
    Clock::time_point current_start{};
  };
  std::string time_left() const;
  void clear();

  const bool on_terminal_;
  bool drawn_ = false;
  Runs runs_;
  Clock::time_point last_line_;
};

}  // namespace ddp::bench
