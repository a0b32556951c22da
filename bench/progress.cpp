#include "bench/progress.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "common/base/progress_bar.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp::bench {
namespace {

constexpr double kSecondsBetweenLines = 15;
constexpr int kBarWidth = 24;

}  // namespace

Progress::Progress() : on_terminal_(stderr_is_terminal()) {}

void Progress::begin(int runs) {
  runs_ = runs;
  done_ = 0;
  begin_ = last_line_ = std::chrono::steady_clock::now();
}

void Progress::start(const std::string& what) {
  if (runs_ == 0 || (!on_terminal_ && seconds_since(last_line_) < kSecondsBetweenLines)) {
    return;
  }
  const double left_s = seconds_since(begin_) / std::max(done_, 1) * (runs_ - done_);
  const std::string left = done_ < 3 ? "" : fmt::format(", about {:.0f} s left", std::ceil(left_s));
  if (!on_terminal_) {
    last_line_ = std::chrono::steady_clock::now();
    note(fmt::format("{} of {} runs{}", done_, runs_, left));
    return;
  }
  const std::string bar(static_cast<std::size_t>(kBarWidth * std::min(done_, runs_) / runs_), '#');
  const std::string line =
      fmt::format("[{:.<{}}] {}/{}{}  {}", bar, kBarWidth, done_, runs_, left, what);
  std::fputs(fmt::format("\r{:.99}\x1b[K", line).c_str(), stderr);
  drawn_ = true;
}

void Progress::note(const std::string& line) {
  clear();
  std::fputs((line + "\n").c_str(), stderr);
}

void Progress::clear() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }
}

}  // namespace ddp::bench
