// bench/run/parity.hpp - trains every configuration once and compares the weights, before anything
// is timed.
#pragma once

#include "bench/report/results.hpp"
#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/progress.hpp"
#include "bench/run/settings.hpp"
#include "bench/run/stage_runner.hpp"

namespace ddp::bench {

RunLength parity_length(const Configuration& configuration);

/// Synthetic data of whole batches, so that every step is as large as the next. 0: the dataset's.
std::int64_t dataset_size_for(const Workload& workload, std::int64_t global_batch);

/// What a run costs before anything of it has been measured.
double assumed_seconds(const Configuration& configuration);

/// Trains every configuration with the same data, batch and seed, and compares `moved` with
/// stage 01's. Nothing is timed in there.
/// @throws UsageError if stage 01 refuses the options
Report check_parity(const Plan& plan, const Settings& settings, StageRunner& runner,
                    Progress& progress, Interrupts& interrupts);

}  // namespace ddp::bench
