// bench/run.hpp - measures a plan: whole programs, and the parts of their steps.
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

/// Calls of bench_micro that measure_pieces() makes: three (with one repetition one) for each
/// shape, batch per rank, number of ranks and of threads, and backend among stages 01 and 03 to 05.
int count_piece_calls(const Plan& plan);

/// Fills pieces_ms and limit_ms of the runs. What bench_micro cannot measure stays empty, and
/// report.not_run says why.
void measure_pieces(const Plan& plan, Session& session, Report& report);

}  // namespace ddp::bench
