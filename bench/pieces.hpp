// bench/pieces.hpp - the parts of a step, each timed alone by bench_micro.
#pragma once

#include "bench/child.hpp"
#include "bench/plan.hpp"
#include "bench/record.hpp"

namespace ddp::bench {

/// Calls of bench_micro that measure_pieces() makes: three (with one repetition one) for each
/// shape, batch per rank, number of ranks and of threads, and backend among stages 01 and 03 to 05.
int count_piece_calls(const Plan& plan);

/// Fills pieces_ms and limit_ms of the runs. What bench_micro cannot measure stays empty, and
/// report.not_run says why.
void measure_pieces(const Plan& plan, Session& session, Report& report);

}  // namespace ddp::bench
