#include "bench/run/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/base/seconds_since.hpp"
#include "common/base/standard_streams.hpp"

namespace ddp::bench {
namespace {

constexpr double kSecondsBetweenLines = 10;
constexpr int kBarWidth = 24;

}  // namespace

Progress::Progress() : on_terminal_(draws_on_stderr()) {}

void Progress::begin(const std::string& phase, std::size_t count, double expected_s,
                     double later_s) {
  runs_ = {.phase = phase, .count = count, .open_s = expected_s, .later_s = later_s};
  last_line_ = Clock::now();
  if (!on_terminal_) {
    note(fmt::format("{}: {} runs, about {} left", phase, count, time_left()));
  }
}

void Progress::start_run(const std::string& label, double expected_s) {
  runs_.current = label;
  runs_.current_s = expected_s;
  runs_.current_start = Clock::now();
  runs_.open_s = std::max(0.0, runs_.open_s - expected_s);
  tick();
}

void Progress::tick() {
  if (!on_terminal_ || runs_.current_s <= 0) {
    return;
  }
  const double share = static_cast<double>(runs_.done) / static_cast<double>(runs_.count);
  const std::string bar(static_cast<std::size_t>(std::lround(share * kBarWidth)), '#');
  const std::string line =
      fmt::format("{} [{:.<{}}] {}/{}, about {} left  {}", runs_.phase, bar, kBarWidth, runs_.done,
                  runs_.count, time_left(), runs_.current);
  std::fputs(fmt::format("\r{:.100}\x1b[K", line).c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::finish_run(double seconds) {
  ++runs_.done;
  runs_.finished_expected_s += runs_.current_s;
  runs_.finished_actual_s += seconds;
  runs_.current_s = 0;
  if (!on_terminal_ && runs_.done < runs_.count &&
      seconds_since(last_line_) >= kSecondsBetweenLines) {
    last_line_ = Clock::now();
    note(fmt::format("{}: {}/{} runs, about {} left", runs_.phase, runs_.done, runs_.count,
                     time_left()));
  }
}

void Progress::end() {
  runs_ = {};
  clear();
}

void Progress::note(const std::string& line) {
  clear();
  std::fputs((line + "\n").c_str(), stderr);
}

/// "45 s", "2 min 5 s"
std::string Progress::time_left() const {
  const double correction =
      runs_.finished_expected_s > 0 ? runs_.finished_actual_s / runs_.finished_expected_s : 1.0;
  const double current_s =
      runs_.current_s > 0
          ? std::max(0.0, runs_.current_s * correction - seconds_since(runs_.current_start))
          : 0.0;
  const long seconds =
      std::lround(std::max(0.0, (runs_.open_s + runs_.later_s) * correction + current_s));
  return seconds < 60 ? fmt::format("{} s", seconds)
                      : fmt::format("{} min {} s", seconds / 60, seconds % 60);
}

void Progress::clear() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
  }
}

}  // namespace ddp::bench
