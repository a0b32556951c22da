// bench/run.hpp - runs a plan: each command once to compare weights, then in timed blocks.
#pragma once

#include "bench/child.hpp"
#include "bench/plan.hpp"
#include "bench/record.hpp"

namespace ddp::bench {

/// Launches that run_plan() makes at most.
int count_launches(const Plan& plan);

/// Fills report.runs. First every command trains once with the same data, seed and global batch:
/// what does not end on stage 01's weights gets an error and is not timed. Then come blocks of
/// timed runs: in each block every command runs once, in an order drawn from the seed, so that two
/// runs of one block lie close together in time and are a pair. An interrupt leaves a partial
/// report.
void run_plan(const Plan& plan, Session& session, Report& report);

}  // namespace ddp::bench
