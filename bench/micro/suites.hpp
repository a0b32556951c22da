// bench/micro/suites.hpp - what is measured, by Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "bench/micro/options.hpp"
#include "bench/micro/ranks.hpp"

namespace ddp::micro {

/// One all-reduce of each size: "all_reduce/gloo/ranks:2/bytes:4096".
void run_all_reduces(const MicroOptions& options, const Ranks& ranks);

/// "limit", see BareProducts, and the parts of stage 03's step at the same shape: "data",
/// "forward", "backward", "update", and with several ranks "all_reduce".
void run_pieces(const MicroOptions& options, const Ranks& ranks);

/// An all-reduce of `bytes` bytes. @param group must outlive the result
///
/// Note [As in a step]: before every run the data is written anew, because on warm, untouched
/// buffers a backend that shares memory looks several times faster than it is in a training step.
/// And every rank computes for a while, because by the time that a step's gradients are there,
/// threads that communicate have gone to sleep and caches hold other things.
Piece all_reduce_piece(const ProcessGroup& group, int64_t bytes);

/// Registers a benchmark. What Google Benchmark calls an iteration is one measurement by all ranks.
/// @param make what is measured, when its turn comes; sets the counters that stand beside the time
void add_benchmark(const std::string& name, benchmark::TimeUnit unit, const Ranks& ranks,
                   const std::function<Piece(benchmark::UserCounters& counters)>& make);

/// Runs the registered benchmarks that --benchmark_filter selects; rank 0 reports.
/// @throws UsageError if the filter selects none
void run_benchmarks(const Ranks& ranks);

}  // namespace ddp::micro
