// bench/run/google_benchmark.hpp - the part of the document that Google Benchmark's tools read.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/run/benchmark_flags.hpp"
#include "bench/run/results.hpp"

namespace ddp::bench {

/// `context` and `benchmarks`, as that library writes them: every repetition as one iteration of a
/// benchmark whose time is the median step of that run, and the aggregates over repetitions.
/// @param machine as describe_machine() made it
nlohmann::ordered_json google_benchmark_document(const Measurements& measurements,
                                                 const nlohmann::ordered_json& machine,
                                                 const BenchmarkOutput& output);

}  // namespace ddp::bench
