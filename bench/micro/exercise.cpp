#include "bench/micro/exercise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/report/statistics.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp::micro {
namespace {

using Clock = std::chrono::steady_clock;

/// All ranks throw if one of them found something wrong.
void agree_that_right(Lockstep& lockstep, const std::string& wrong) {
  const std::vector<std::string> findings = lockstep.all_gather(wrong);
  for (size_t rank = 0; rank < findings.size(); ++rank) {
    if (!findings[rank].empty()) {
      throw WrongResult(fmt::format("rank {}: {}", rank, findings[rank]));
    }
  }
}

/// @return seconds of the run
double run_once(const Exercise& exercise, Lockstep& lockstep, std::int64_t iteration) {
  exercise.prepare(iteration);
  lockstep.synchronize();
  lockstep.line_up();
  const Clock::time_point begin = Clock::now();
  exercise.run();
  lockstep.synchronize();
  return seconds_since(begin);
}

/// The first warm-up. @return the iterations that follow, agreed upon by all ranks
std::int64_t choose_iterations(const Exercise& exercise, Lockstep& lockstep, double min_seconds,
                               std::int64_t min_iterations) {
  std::vector<double> whole_seconds;  // with all that is not timed: it takes time too
  for (std::int64_t i = 0; i < kMinWarmups; ++i) {
    const Clock::time_point begin = Clock::now();
    run_once(exercise, lockstep, i);
    whole_seconds.push_back(seconds_since(begin));
  }
  const double typical = bench::median(whole_seconds).value_or(0);
  const double wanted =
      std::clamp(std::ceil(min_seconds / std::max(typical, 1e-9)),
                 static_cast<double>(min_iterations), static_cast<double>(kMaxIterations));
  return std::stoll(lockstep.from_rank0(std::to_string(static_cast<std::int64_t>(wanted))));
}

}  // namespace

std::vector<double> Series::slowest() const {
  std::vector<double> result = seconds.front();
  for (const std::vector<double>& rank : seconds) {
    std::ranges::transform(rank, result, result.begin(), std::ranges::max);
  }
  return result;
}

Series measure(const Exercise& exercise, Lockstep& lockstep, double min_seconds,
               std::int64_t iterations, std::int64_t min_iterations) {
  using nlohmann::json;
  constexpr std::int64_t kWarmupShare = 10;  // a tenth: caches, pages and frequencies settle
  agree_that_right(lockstep, exercise.verify());
  const bool known = iterations > 0;
  const std::int64_t timed =
      known ? iterations : choose_iterations(exercise, lockstep, min_seconds, min_iterations);
  const std::int64_t warmups =
      std::max(timed / kWarmupShare, known ? kMinWarmupsOnceKnown : std::int64_t{0});
  std::vector<double> own_seconds;
  own_seconds.reserve(static_cast<size_t>(timed));
  for (std::int64_t i = 0; i < warmups + timed; ++i) {
    const double seconds = run_once(exercise, lockstep, i);
    if (i >= warmups) {
      own_seconds.push_back(seconds);
    }
  }
  agree_that_right(lockstep, exercise.check());
  Series series;
  for (const std::string& text : lockstep.gather(json(own_seconds).dump())) {
    series.seconds.push_back(json::parse(text).get<std::vector<double>>());
  }
  return series;
}

}  // namespace ddp::micro
