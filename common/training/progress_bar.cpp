#include "common/training/progress_bar.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdio>

#include "common/base/seconds_since.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kBetweenDrawings{200};

int terminal_columns() {
  constexpr int kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

/// One string, one write.
void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
}

/// "1:02:03", "2:03"
std::string duration(double seconds) {
  constexpr double kLongest = 999 * 3600.0;
  const auto whole = static_cast<int64_t>(std::min(seconds, kLongest));
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

ProgressBar::ProgressBar(int64_t total_epochs, const std::atomic<int64_t>& steps)
    : total_epochs_(total_epochs), steps_done_(steps) {
  // Signals are for the thread that trains.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::jthread([this](const std::stop_token& stop) { redraw(stop); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ProgressBar::begin_epoch(int64_t epoch, int64_t steps) {
  const std::lock_guard lock(mutex_);
  if (first_epoch_ < 0) {
    first_epoch_ = epoch;
    begin_ = Clock::now();
  }
  epoch_ = epoch;
  epoch_steps_ = steps;
  in_epoch_ = true;
}

void ProgressBar::hide() {
  const std::lock_guard lock(mutex_);
  in_epoch_ = false;
  if (drawn_) {
    print("\r\x1b[K");
    drawn_ = false;
  }
}

void ProgressBar::redraw(const std::stop_token& stop) {
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex_);
  while (!stopped.wait_for(lock, stop, kBetweenDrawings, [&] { return stop.stop_requested(); })) {
    const int64_t steps = steps_done_.load(std::memory_order_relaxed);
    if (in_epoch_ && steps > 0) {
      print(fmt::format("\r{:.{}}\x1b[K", line(steps), terminal_columns() - 1));
      drawn_ = true;
    }
  }
}

std::string ProgressBar::line(int64_t steps_done) const {
  constexpr int kBarWidth = 24;
  const auto epoch_steps = static_cast<double>(epoch_steps_);
  const double epochs_done =
      static_cast<double>(epoch_) + static_cast<double>(steps_done) / epoch_steps;
  const double epochs_here = epochs_done - static_cast<double>(first_epoch_);
  const double seconds = seconds_since(begin_);
  const double share = epochs_done / static_cast<double>(total_epochs_);
  const std::string bar(static_cast<size_t>(share * kBarWidth), '#');
  return fmt::format(
      "epoch {}/{} [{:.<{}}] {:.0f} %, step {}/{}, {:.1f} steps/s, {} left", epoch_ + 1,
      total_epochs_, bar, kBarWidth, std::floor(share * 100), steps_done, epoch_steps_,
      epochs_here * epoch_steps / seconds,
      duration(seconds / epochs_here * (static_cast<double>(total_epochs_) - epochs_done)));
}

}  // namespace ddp
