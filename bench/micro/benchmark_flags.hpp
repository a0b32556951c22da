// bench/micro/benchmark_flags.hpp - Google Benchmark's own flags.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddp::micro {

/// The value of the last NAME=VALUE among `flags`; nothing if there is none.
std::optional<std::string> flag_value(const std::vector<std::string>& flags,
                                      const std::string& name);

/// @throws UsageError naming the flag whose value Google Benchmark would answer with its help text,
/// with success, or not at all
void check_benchmark_flags(const std::vector<std::string>& flags);

/// --benchmark_list_tests
bool list_only(const std::vector<std::string>& flags);

/// --benchmark_filter, as Google Benchmark reads it: an extended regular expression somewhere in
/// the name, or, after a "-", nowhere. Its own filter would see other names than the report has,
/// with
/// "/iterations:1/manual_time" at their end, so that "bytes:4$" would find nothing.
bool is_selected(const std::vector<std::string>& flags, const std::string& name);

/// Hands the others over. @throws UsageError naming the first that Google Benchmark does not know
void initialize_benchmark(const std::vector<std::string>& flags, int repetitions);

}  // namespace ddp::micro
