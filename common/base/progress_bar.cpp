#include "common/base/progress_bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace ddp {

bool stderr_is_terminal() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

void ProgressBar::draw(int64_t epoch, int64_t step) {
  constexpr std::chrono::milliseconds kBetweenDrawings{200};
  constexpr int kWidth = 24;
  ++steps_;
  const Clock::time_point now = Clock::now();
  if (now < next_) {
    return;
  }
  next_ = now + kBetweenDrawings;
  const auto filled = static_cast<size_t>(epoch * kWidth / total_epochs_);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  // A single write, so that other output does not mix with the bar.
  std::fputs(
      fmt::format("\repoch {}/{} [{:.<{}}] step {}, {:.1f} steps/s\x1b[K", epoch + 1, total_epochs_,
                  std::string(filled, '#'), kWidth, step, static_cast<double>(steps_) / seconds)
          .c_str(),
      stderr);
  drawn_ = true;
}

void ProgressBar::hide() {
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }
}

}  // namespace ddp
