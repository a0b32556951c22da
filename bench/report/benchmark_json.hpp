// bench/report/benchmark_json.hpp - reads what Google Benchmark calls JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ddp::bench {

/// The library writes NaN and Infinity bare, which no JSON parser takes; here they become null.
/// @throws nlohmann::json::parse_error if the rest is not JSON either
nlohmann::ordered_json parse_benchmark_json(const std::string& text);

}  // namespace ddp::bench
