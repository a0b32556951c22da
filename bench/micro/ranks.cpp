#include "bench/micro/ranks.hpp"

#include <c10/core/Event.h>

#include <deque>

#include "common/base/patience.hpp"
#include "common/base/percentile.hpp"
#include "common/device/device.hpp"

namespace ddp::micro {

using Clock = std::chrono::steady_clock;

/// Note [Start]: after a backend's own barrier the ranks start some ten microseconds apart, which
/// is more than a whole small all-reduce. So on one host, with a common clock, the ranks agree on a
/// moment a little later and start then. By that time the backend's threads sleep again, as they do
/// when a step's gradients are ready.
void Ranks::line_up() const {
  synchronize(device_);
  if (size() == 1) {
    return;
  }
  if (group_.launch().num_nodes > 1) {
    group_.barrier();
    return;
  }
  const int64_t now = Clock::now().time_since_epoch().count();
  const torch::Tensor own = torch::full({1}, now, torch::dtype(torch::kInt64).device(device_));
  const Clock::duration last(group_.all_gather(own).max().item<int64_t>());
  while (Clock::now().time_since_epoch() < last + std::chrono::microseconds(100)) {
    std::this_thread::yield();
  }
}

std::vector<double> Ranks::repeat_queued(const Piece& piece, int64_t times) const {
  constexpr int64_t kQueued = 10;  // number of runs between two meetings of the ranks
  const auto record = [&](std::deque<c10::Event>& events) {
    events.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events.back().record(current_stream(device_));
  };
  std::vector<double> seconds;
  while (std::ssize(seconds) < times) {
    std::deque<c10::Event> begins, ends;
    line_up();
    for (int64_t i = 0; i < kQueued; ++i) {
      piece.prepare();
      record(begins);
      piece.run();
      record(ends);
    }
    synchronize(device_);
    for (size_t i = 0; i < begins.size(); ++i) {
      seconds.push_back(begins[i].elapsedTime(ends[i]) / 1e3);
    }
  }
  return seconds;
}

std::vector<double> Ranks::repeat(const Piece& piece, int64_t times) const {
  if (!device_.is_cpu()) {
    return repeat_queued(piece, times);
  }
  std::vector<double> seconds;
  for (int64_t i = 0; i < times; ++i) {
    piece.prepare();
    line_up();
    const Clock::time_point begin = Clock::now();
    piece.run();
    seconds.push_back(seconds_since(begin));
  }
  return seconds;
}

double Ranks::largest(double value) const {
  return group_.all_gather(torch::full({1}, value, device_)).max().item<double>();
}

void Ranks::agree_that_right(const Piece& piece) const {
  const std::string wrong = piece.check();
  if (largest(wrong.empty() ? 0 : 1) > 0) {
    // A rank with an empty message prints nothing, because another rank has the message.
    throw Error(ExitCode::kTrainingFailed, wrong);
  }
}

double Ranks::measure(const Piece& piece) const {
  constexpr int64_t kWarmups = 5;
  repeat(piece, kWarmups);
  agree_that_right(piece);
  // prepare() and line_up() take time too. All ranks must repeat equally often, or some would wait
  // for ever. So they use the slowest rank's time.
  const Clock::time_point begin = Clock::now();
  repeat(piece, kWarmups);
  const double once = largest(seconds_since(begin) / kWarmups);
  const auto times =
      static_cast<int64_t>(std::clamp(std::ceil(min_seconds_ / once), 10.0, 10'000.0));
  repeat(piece, times / 10);  // caches, pages and frequencies settle
  const std::vector<double> seconds = repeat(piece, times);
  agree_that_right(piece);
  return largest(median(seconds).value());
}

}  // namespace ddp::micro
