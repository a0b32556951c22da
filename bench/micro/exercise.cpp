#include "bench/micro/exercise.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "bench/report/statistics.hpp"

namespace ddp::micro {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// All ranks throw if one of them found something wrong.
void agree_that_right(Lockstep& lockstep, const std::string& wrong) {
  const std::vector<std::string> findings = lockstep.gather(wrong);
  std::string first;
  for (size_t rank = 0; rank < findings.size() && first.empty(); ++rank) {
    if (!findings[rank].empty()) {
      first = "rank " + std::to_string(rank) + ": " + findings[rank];
    }
  }
  first = lockstep.from_rank0(first);
  if (!first.empty()) {
    throw WrongResult(first);
  }
}

/// @return seconds of the run
double run_once(Exercise& exercise, Lockstep& lockstep, std::int64_t iteration) {
  exercise.prepare(iteration);
  lockstep.synchronize();
  lockstep.line_up();
  const Clock::time_point begin = Clock::now();
  exercise.run();
  lockstep.synchronize();
  return seconds_between(begin, Clock::now());
}

/// The first warm-up. @return the iterations that follow, agreed upon by all ranks
std::int64_t choose_iterations(Exercise& exercise, Lockstep& lockstep, double min_seconds) {
  std::vector<double> whole_seconds;  // with all that is not timed: it takes time too
  Clock::time_point begin = Clock::now();
  for (std::int64_t i = 0; i < kMinWarmups; ++i) {
    run_once(exercise, lockstep, i);
    const Clock::time_point end = Clock::now();
    whole_seconds.push_back(seconds_between(begin, end));
    begin = end;
  }
  const double typical = bench::median(whole_seconds).value_or(0);
  const double wanted =
      std::clamp(std::ceil(min_seconds / std::max(typical, 1e-9)),
                 static_cast<double>(kMinIterations), static_cast<double>(kMaxIterations));
  return std::stoll(lockstep.from_rank0(std::to_string(static_cast<std::int64_t>(wanted))));
}

std::string to_text(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

std::vector<double> from_text(const std::string& text) {
  std::vector<double> values(text.size() / sizeof(double));
  std::memcpy(values.data(), text.data(), values.size() * sizeof(double));
  return values;
}

}  // namespace

std::vector<double> Series::slowest() const {
  std::vector<double> result = seconds.front();
  for (const std::vector<double>& rank : seconds) {
    std::transform(rank.begin(), rank.end(), result.begin(), result.begin(),
                   [](double a, double b) { return std::max(a, b); });
  }
  return result;
}

Series measure(Exercise& exercise, Lockstep& lockstep, double min_seconds,
               std::int64_t iterations) {
  constexpr std::int64_t kWarmupShare = 10;  // a tenth: caches, pages and frequencies settle
  agree_that_right(lockstep, exercise.verify());
  const std::int64_t chosen = choose_iterations(exercise, lockstep, min_seconds);
  const std::int64_t timed = iterations > 0 ? iterations : chosen;
  const std::int64_t warmups = timed / kWarmupShare;
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
  for (const std::string& text : lockstep.gather(to_text(own_seconds))) {
    series.seconds.push_back(from_text(text));
  }
  return series;
}

}  // namespace ddp::micro
