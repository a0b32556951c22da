// bench/measurement.hpp - parity first, then interleaved repetitions through Google Benchmark.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/child_process.hpp"
#include "bench/progress.hpp"
#include "bench/results.hpp"
#include "bench/settings.hpp"
#include "bench/stage_runner.hpp"

namespace ddp::bench {

/// Stands for a number of epochs that only the parity runs tell.
inline constexpr std::int64_t kUnknownEpochs = -1;

/// What is known of a run before anything has been run, for --dry-run.
RunLength run_length(const Configuration& configuration, bool parity);

/// Hands Google Benchmark its flags; once, before the functions below.
/// @throws UsageError naming a flag that it does not know
void initialize_benchmark(const Settings& settings);

/// Trains every configuration with the same data, batch and seed, and compares `moved` with
/// stage 01's. Nothing is timed in there.
/// @throws UsageError if stage 01 refuses the options
Report check_parity(const Plan& plan, const Settings& settings, StageRunner& runner,
                    Progress& progress, Interrupts& interrupts);

/// Chooses how long the timed runs are, before the first of them.
void choose_lengths(const Settings& settings, double seconds_used, Report& report);

/// Runs what is left of the report's configurations, all repetitions in random order.
/// @return Google Benchmark's own JSON document
nlohmann::ordered_json measure(const Settings& settings, StageRunner& runner, Progress& progress,
                               Interrupts& interrupts, Report& report);

/// Prints the names as Google Benchmark does for --benchmark_list_tests.
void list_benchmarks(const Plan& plan);

}  // namespace ddp::bench
