#include "common/base/progress_bar.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "common/base/patience.hpp"

namespace ddp {

bool stderr_is_terminal() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::string drawn_bar(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 24;
  const std::string filled(static_cast<size_t>(kWidth * std::min(done, total) / total), '#');
  return fmt::format("[{:.<{}}]", filled, kWidth);
}

void StatusLine::show(const std::string& text) {
  // A single write, so that other output does not mix with the line.
  std::fputs(("\r" + text + "\x1b[K").c_str(), stderr);
  shown_ = true;
}

void StatusLine::hide() {
  if (shown_) {
    std::fputs("\r\x1b[K", stderr);
    shown_ = false;
  }
}

void ProgressBar::draw(int64_t epoch, int64_t step) {
  ++steps_;
  const Clock::time_point now = Clock::now();
  if (now < next_) {
    return;
  }
  next_ = now + std::chrono::milliseconds(200);
  line_.show(fmt::format("epoch {}/{} {} step {}, {:.1f} steps/s", epoch + 1, total_epochs_,
                         drawn_bar(epoch, total_epochs_), step,
                         static_cast<double>(steps_) / seconds_since(begin_)));
}

}  // namespace ddp
