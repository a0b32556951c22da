#include "bench/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/base/patience.hpp"

namespace ddp::bench {
void Progress::begin(int runs) {
  runs_ = runs;
  done_ = 0;
  begin_ = last_line_ = std::chrono::steady_clock::now();
}

void Progress::start(const std::string& what) {
  constexpr double kSecondsBetweenLines = 15;
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
  line_.show(fmt::format(
      "{:.99}", fmt::format("{} {}/{}{}  {}", drawn_bar(done_, runs_), done_, runs_, left, what)));
}

void Progress::note(const std::string& line) {
  line_.hide();
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace ddp::bench
