// bench/run/measurement.hpp - the timed runs: blocks in which everything runs once, in random
// order.
#pragma once

#include "bench/report/results.hpp"
#include "bench/run/child_process.hpp"
#include "bench/run/progress.hpp"
#include "bench/run/settings.hpp"
#include "bench/run/stage_runner.hpp"

namespace ddp::bench {

/// Stands for a number of epochs that only the parity runs tell.
inline constexpr std::int64_t kUnknownEpochs = -1;

/// What is known of a timed run before anything has been run, for --dry-run.
RunLength planned_length(const Configuration& configuration);

/// Chooses how long the timed runs are, before the first of them.
void choose_lengths(const Settings& settings, double seconds_used, Report& report);

/// Runs what is left of the report's configurations: in each of --repetitions blocks every
/// configuration once, in an order drawn from the seed, so that the k-th runs of any two lie close
/// together in time and can be compared as pairs.
void measure(const Settings& settings, StageRunner& runner, Progress& progress,
             Interrupts& interrupts, Report& report);

}  // namespace ddp::bench
