// bench/run/progress.hpp - says on standard error how far the work is and how long it still takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace ddp::bench {

/// A bar that is redrawn in place on a terminal, else a line now and then.
class Progress {
 public:
  Progress();

  /// A new list of runs. `expected_s` need only be roughly right: it is corrected by what the
  /// runs really take.
  /// @param later_s what follows after this list
  void begin(const std::string& phase, std::vector<double> expected_s, double later_s);
  void start_run(const std::string& label, double expected_s);
  /// Redraws the bar; cheap enough to be called several times a second.
  void tick();
  void finish_run(double seconds);
  /// Ends the list and clears the bar.
  void end();
  /// A line that stays.
  void note(const std::string& line);

  bool on_terminal() const { return on_terminal_; }

 private:
  using Clock = std::chrono::steady_clock;
  double remaining_s() const;
  void draw();
  void clear();

  bool on_terminal_;
  bool drawn_ = false;
  std::string phase_;
  std::string label_;
  std::size_t runs_ = 0;
  std::size_t done_ = 0;
  double open_s_ = 0;  // expected time of the runs that have not begun
  double current_s_ = 0;  // expected time of the one that runs
  double later_s_ = 0;
  double finished_expected_s_ = 0;
  double finished_actual_s_ = 0;
  Clock::time_point run_start_;
  Clock::time_point last_line_;
};

/// "45 s", "2 min 5 s".
std::string format_duration(double seconds);

}  // namespace ddp::bench
