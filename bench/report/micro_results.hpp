// bench/report/micro_results.hpp - what bench_micro measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/statistics.hpp"

namespace ddp::bench {

/// What one rank can do while `world_size` of them do it at the same time.
struct Limit {
  int world_size = 1;
  std::string device;  ///< "cpu" or "cuda"
  std::optional<double> fp32_gflops;
  std::optional<double> memory_bandwidth_gbps;  ///< read and written, GB/s (1e9)
};

/// One all-reduce of fp32 values, on its slowest rank.
struct AllReduceSample {
  std::string backend;
  std::string device;
  int world_size = 2;
  std::int64_t bytes = 0;
  Distribution time_us;
};

/// All the all-reduces of one training step, started one after the other: communication alone.
struct StepAllReduce {
  std::string backend;
  std::string device;
  int world_size = 2;
  std::string name;
  Distribution time_us;
  std::optional<std::int64_t> bytes;  ///< of all buckets
};

struct PieceResult {
  std::string name;  ///< "optimizer/sgd/flat/S"
  Distribution time_us;
  std::optional<std::int64_t> bytes;  ///< that must at least be read and written
  std::optional<double> bandwidth_gbps;
};

/// What a document of bench_micro holds. With repetitions each number is the median over them, and
/// `n` their sum.
struct MicroResults {
  std::vector<Limit> limits;
  std::vector<AllReduceSample> all_reduce;
  std::vector<StepAllReduce> steps;
  std::vector<PieceResult> pieces;
  std::vector<std::string> errors;  ///< "NAME: what is wrong" of what has no time

  /// Adds those of another document.
  void append(const MicroResults& other);
};

/// @param path of what bench_micro wrote with --benchmark_out
/// @throws Error (1) naming the file and what it lacks, if it is missing, cut off or malformed
MicroResults read_micro_results(const std::string& path);

}  // namespace ddp::bench
