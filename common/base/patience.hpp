// common/base/patience.hpp - elapsed time, and limits of waits that do not run while the process is
// stopped.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/process_exit.hpp"

namespace ddp {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// "0.5", for messages.
inline std::string in_seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g}", std::chrono::duration<double>(time).count());
}

/// Limit of a wait in short intervals. A whole job can be suspended (SIGSTOP, Slurm's preemption,
/// Ctrl-Z) for longer than the limit, and must go on. So the time between two looks counts only up
/// to a second.
class Patience {
 public:
  explicit Patience(std::chrono::duration<double> limit) : left_(limit) {}

  /// True once the limit is reached. Call it several times per second.
  bool is_over() {
    const auto now = std::chrono::steady_clock::now();
    left_ -= std::min<std::chrono::duration<double>>(now - looked_, std::chrono::seconds(1));
    looked_ = now;
    return left_.count() <= 0;
  }

 private:
  std::chrono::duration<double> left_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

/// Timeout for a library whose clock runs on while the process is stopped: our own wait around the
/// call has the real limit.
inline constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24 * 365);

/// Calls `ask` in a thread, which is left behind after `limit`, or once it `is_hopeless`: a call to
/// a store whose process was stopped never returns. Time in which this process is stopped does not
/// count.
/// @return the answer, or nothing @throws the exceptions of `ask`
template <typename Ask>
auto ask_in_time(Ask ask, std::chrono::milliseconds limit,
                 const std::function<bool()>& is_hopeless = {}) -> std::optional<decltype(ask())> {
  std::packaged_task<decltype(ask())()> task(std::move(ask));
  auto answer = task.get_future();
  std::thread(std::move(task)).detach();
  constexpr std::chrono::milliseconds kLook(250);
  for (Patience patience(limit);
       answer.wait_for(std::min(limit, kLook)) != std::future_status::ready;) {
    if (patience.is_over() || (is_hopeless && is_hopeless())) {
      skip_destructors_at_exit();
      return std::nullopt;
    }
  }
  return answer.get();
}

}  // namespace ddp
