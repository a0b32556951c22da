// bench/report/micro_results.hpp - what bench_micro measured.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// All the all-reduces of one training step, started one after the other: communication alone.
struct StepAllReduce {
  std::string backend;
  std::string device;
  int world_size = 2;
  std::string name;
  Distribution time_us;
  std::int64_t bytes = 0;  ///< of all buckets
};

/// Raises each rate of `limit` to that of `other`.
void keep_best(Limit& limit, const Limit& other);

/// What a document of bench_micro holds. With repetitions each number is the median over them, and
/// `n` their sum.
struct MicroResults {
  std::vector<Limit> limits;
  std::vector<AllReduceSample> all_reduce;
  std::vector<StepAllReduce> steps;
  std::vector<PieceResult> pieces;
  std::vector<std::string> errors;  ///< "NAME: what is wrong" of what has no time

  /// Adds those of another document; of limits that both have the better ones stay.
  void append(const MicroResults& other);
};

/// Google Benchmark writes NaN and Infinity bare, which is no JSON: here they become null.
/// @throws nlohmann::json::parse_error if the rest is not JSON either
nlohmann::ordered_json parse_benchmark_json(const std::string& text);

/// @param path of what bench_micro wrote with --benchmark_out
/// @throws Error (1) naming the file and what it lacks, if it is missing, cut off or malformed
MicroResults read_micro_results(const std::string& path);

}  // namespace ddp::bench
