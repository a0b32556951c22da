// bench/micro/google_benchmark.hpp - rank 0's side: Google Benchmark, its flags and its reports.
#pragma once

#include <string>
#include <vector>

#include "bench/micro/options.hpp"
#include "bench/micro/team.hpp"

namespace ddp::micro {

/// @throws UsageError naming the flag whose value Google Benchmark would answer with its help text,
/// with success, or not at all
void check_benchmark_flags(const std::vector<std::string>& flags);

/// Hands the flags over, but for those that choose benchmarks.
/// @throws UsageError naming the first that Google Benchmark does not know
void initialize_benchmark(const std::vector<std::string>& flags, int repetitions);

/// Registers the entries, runs those that --benchmark_filter selects (or lists them, for
/// --benchmark_list_tests), and reports to standard output and --benchmark_out. Once per process.
/// @throws UsageError if the filter selects none
/// @throws Error (1) if a result was wrong: the other benchmarks have been reported by then
void run_benchmarks(const std::vector<Entry>& entries, const MicroOptions& options, Team& team);

}  // namespace ddp::micro
