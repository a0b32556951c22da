// bench/google_benchmark.hpp - the part of the document that Google Benchmark's tools read.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/record.hpp"

namespace ddp::bench {

/// Google Benchmark's name of a run is its own with this suffix: one iteration, timed by hand.
inline constexpr const char* kBenchmarkSuffix = "/iterations:1/manual_time";

/// `context` and `benchmarks` as the library writes them: every repetition of a run is an iteration
/// whose time is the median step. compare.py pairs them by name and tests them by ranks.
nlohmann::ordered_json google_benchmark_document(const Report& report);

}  // namespace ddp::bench
