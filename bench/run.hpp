// bench/run.hpp - measures the runs of a plan, and the parts of their steps.
#pragma once

#include "bench/child.hpp"
#include "bench/plan.hpp"

namespace ddp::bench {

/// Largest number of launches of run_plan().
int count_launches(const Plan& plan);

/// Fills report.runs. First every command trains once with the same data, seed and global batch. If
/// it does not end on stage 01's weights, it gets an error and is not timed. Then come blocks,
/// each of all commands in a random order from the seed. An interrupt leaves a partial report.
void run_plan(const Plan& plan, Session& session, Report& report);

/// Number of calls of bench_micro in measure_pieces(): three (with a single repetition one) for
/// each combination of shape, batch per rank, ranks, threads and backend in stages 01 and 03 to 05.
int count_piece_calls(const Plan& plan);

/// Fills pieces_ms and limit_ms of the runs. If bench_micro fails, they stay empty, and
/// report.not_run gives the reason.
void measure_pieces(const Plan& plan, Session& session, Report& report);

}  // namespace ddp::bench
