#include "bench/run/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "bench/run/child_process.hpp"

namespace ddp::bench {
namespace {

constexpr double kSecondsBetweenLines = 10;
constexpr int kBarWidth = 24;

bool is_terminal() {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

Progress::Progress() : on_terminal_(is_terminal()) {}

void Progress::begin(const std::string& phase, std::vector<double> expected_s, double later_s) {
  phase_ = phase;
  runs_ = expected_s.size();
  done_ = 0;
  open_s_ = std::accumulate(expected_s.begin(), expected_s.end(), 0.0);
  current_s_ = 0;
  later_s_ = later_s;
  finished_expected_s_ = 0;
  finished_actual_s_ = 0;
  last_line_ = Clock::now();
  if (!on_terminal_) {
    note(phase_ + ": " + std::to_string(runs_) + " runs, about " +
         format_duration(open_s_ + later_s_) + " left");
  }
}

void Progress::start_run(const std::string& label, double expected_s) {
  label_ = label;
  current_s_ = expected_s;
  open_s_ = std::max(0.0, open_s_ - expected_s);
  run_start_ = Clock::now();
  draw();
}

void Progress::tick() {
  if (on_terminal_) {
    draw();
  }
}

void Progress::finish_run(double seconds) {
  ++done_;
  finished_expected_s_ += current_s_;
  finished_actual_s_ += seconds;
  current_s_ = 0;
  if (!on_terminal_ && done_ < runs_ && seconds_since(last_line_) >= kSecondsBetweenLines) {
    last_line_ = Clock::now();
    note(phase_ + ": " + std::to_string(done_) + "/" + std::to_string(runs_) + " runs, about " +
         format_duration(remaining_s()) + " left");
  }
}

void Progress::end() {
  clear();
}

void Progress::note(const std::string& line) {
  clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

double Progress::remaining_s() const {
  const double correction =
      finished_expected_s_ > 0 ? finished_actual_s_ / finished_expected_s_ : 1.0;
  const double current =
      current_s_ > 0 ? std::max(0.0, current_s_ * correction - seconds_since(run_start_)) : 0.0;
  return (open_s_ + later_s_) * correction + current;
}

void Progress::draw() {
  if (!on_terminal_) {
    return;
  }
  const double share = runs_ == 0 ? 1 : static_cast<double>(done_) / static_cast<double>(runs_);
  const int filled = static_cast<int>(std::lround(share * kBarWidth));
  std::string line = phase_ + " [" + std::string(static_cast<std::size_t>(filled), '#') +
                     std::string(static_cast<std::size_t>(kBarWidth - filled), '.') + "] " +
                     std::to_string(done_) + "/" + std::to_string(runs_) + ", about " +
                     format_duration(remaining_s()) + " left  " + label_;
  line.resize(std::min<std::size_t>(line.size(), 100));
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
  }
}

std::string format_duration(double seconds) {
  const long whole = std::lround(std::max(0.0, seconds));
  if (whole < 60) {
    return std::to_string(whole) + " s";
  }
  return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
}

}  // namespace ddp::bench
