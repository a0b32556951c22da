// bench/report/google_benchmark.hpp - Google Benchmark's flags and its JSON document.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/report/results.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/settings.hpp"

namespace ddp::bench {

/// Hands Google Benchmark its flags; once, before the functions below.
/// @throws UsageError naming a flag that it does not know
void initialize_benchmark(const Settings& settings);

/// Prints the names as Google Benchmark does for --benchmark_list_tests.
void list_benchmarks(const Plan& plan);

/// Every repetition as one iteration of a benchmark whose time is the median step of that run: the
/// order of the runs is ours (see measure()), the statistics and the document are the library's.
/// @return Google Benchmark's own JSON document
nlohmann::ordered_json report_through_benchmark(const Report& report);

}  // namespace ddp::bench
