// bench/micro/exercise.hpp - one thing that all ranks do at the same time, and how it is timed.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/micro/lockstep.hpp"

namespace ddp::micro {

inline constexpr std::int64_t kMinIterations = 10;
/// Of one of several repetitions: as many have a spread.
inline constexpr std::int64_t kMinIterationsOfOneOfSeveral = 5;
inline constexpr std::int64_t kMaxIterations = 10'000;
inline constexpr std::int64_t kMinWarmups = 5;  // from which it follows how many are timed
inline constexpr std::int64_t kMinWarmupsOnceKnown = 2;

/// How long every iteration took on every rank.
struct Series {
  std::vector<std::vector<double>> seconds;  ///< [rank][iteration]

  /// An iteration is as long as it is on its slowest rank.
  std::vector<double> slowest() const;
};

/// What a benchmark repeats, as functions that own what they use.
struct Exercise {
  /// Timed, until the device is idle again.
  std::function<void()> run;
  /// On rank 0: what the report says besides the times of the complete series.
  std::function<void(const Series& series, benchmark::UserCounters& counters)> report;
  /// Before each run(), not timed.
  std::function<void(std::int64_t iteration)> prepare = [](std::int64_t) {};
  /// Runs on data whose result is known, once, before anything is timed.
  /// @return what is wrong with the result on this rank; empty if nothing is
  std::function<std::string()> verify = [] { return ""; };
  /// After the last run(). @return as verify()
  std::function<std::string()> check = [] { return ""; };
};

/// A result was wrong, so that there is no time. Thrown on all ranks alike.
class WrongResult : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Verifies, warms up, and times.
///
/// Note [Equal counts]: a rank that made one iteration less would leave the others waiting. So rank
/// 0 alone decides how many there are, from the warm-up, and tells the others.
/// @param iterations how many to time; 0: as many as take `min_seconds`, with the limits above
/// @param min_iterations the lower one of these limits
/// @return on rank 0 the series of all ranks, elsewhere nothing @throws WrongResult
Series measure(const Exercise& exercise, Lockstep& lockstep, double min_seconds,
               std::int64_t iterations = 0, std::int64_t min_iterations = kMinIterations);

}  // namespace ddp::micro
