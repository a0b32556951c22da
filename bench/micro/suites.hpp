// bench/micro/suites.hpp - the benchmarks, by Google Benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include "bench/micro/ranks.hpp"
#include "common/launch/options.hpp"

namespace ddp::micro {

/// The command line of bench_micro.
struct MicroOptions {
  std::string suite;  ///< "all_reduce" or "pieces"
  /// Sizes of the all-reduces, from latency-bound to bandwidth-bound.
  std::vector<int64_t> bytes = {4, 64, 1024, 16 << 10, 256 << 10, 4 << 20, 16 << 20};
  double min_seconds = 0.2;  ///< time of each benchmark
  std::vector<std::string> benchmark_flags;  ///< Google Benchmark's own, "--benchmark_out=FILE"
  Options stage;  ///< a stage's options: layers, batch, device, threads, backend, timeout
};

/// Runs an all-reduce of each size: "all_reduce/gloo/ranks:2/bytes:4096".
void run_all_reduces(const MicroOptions& options, const Ranks& ranks);

/// Runs "limit", see BareProducts, and the parts of stage 03's step at the same shape: "data",
/// "forward", "backward", "update", and with several ranks "all_reduce".
void run_pieces(const MicroOptions& options, const Ranks& ranks);

/// All-reduce of `bytes` bytes. @param group must outlive the result
/// Note [As in a step]: before every run the data is written again. On warm, untouched buffers a
/// backend over shared memory would look several times faster than in a training step. Every rank
/// also computes for a while: when a step's gradients are ready, threads for communication sleep
/// and caches hold other data.
Piece all_reduce_piece(const ProcessGroup& group, int64_t bytes);

/// Registers a benchmark. An iteration of Google Benchmark is a measurement by all ranks.
/// @param make makes the piece when its turn comes, and sets the counters beside the time
void add_benchmark(const std::string& name, benchmark::TimeUnit unit, const Ranks& ranks,
                   const std::function<Piece(benchmark::UserCounters& counters)>& make);

/// Runs the registered benchmarks that --benchmark_filter selects; rank 0 reports.
/// @throws UsageError if the filter selects none
void run_benchmarks(const Ranks& ranks);

}  // namespace ddp::micro
