// bench/run/machine_limits.hpp - measures with bench_micro what this machine can do at best.
#pragma once

#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/results.hpp"

namespace ddp::bench {

/// Runs bench_micro for every world size of the plan: arithmetic, memory, all-reduces of many sizes
/// on every backend, the all-reduces of each configuration's step, and with --micro the pieces.
/// Fills measurements.micro and each result's alone_ms. What cannot be measured stays unknown and
/// is named in plan.not_run: without limits the report is still one.
void measure_limits(Plan& plan, Session& session, Measurements& measurements);

/// Arithmetic and memory once more: on a machine whose speed wanders one look may find it slow, and
/// the better rate stays. Not with --quick.
/// @param later_s what follows after it
void measure_limits_again(double later_s, Plan& plan, Session& session, Measurements& measurements);

/// What that will take.
double seconds_of_limits_again(const Plan& plan, const Measurements& measurements);

}  // namespace ddp::bench
