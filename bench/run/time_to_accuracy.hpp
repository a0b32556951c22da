// bench/run/time_to_accuracy.hpp - how long one process and several ranks take to an accuracy.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/results.hpp"

namespace ddp::bench {

/// What measure_time_to_accuracy() takes on two cores.
inline constexpr double kTimeToAccuracySeconds = 320;

/// The smallest number from 1 to `most` that is enough, if more than enough is enough too: found by
/// doubling, then halving. The answer was tried unless it is nothing.
std::optional<std::int64_t> find_smallest(std::int64_t most,
                                          const std::function<bool(std::int64_t)>& is_enough);

/// Searches the fewest epochs that reach the target (a training is what its seed makes it, so one
/// launch tells), then times launches of that length. A dataset that is not there is named in the
/// plan.
void measure_time_to_accuracy(Plan& plan, Session& session, Measurements& measurements);

}  // namespace ddp::bench
