#include "bench/run/google_benchmark.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "bench/report/statistics.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_deviation(const std::vector<double>& values) {
  const double center = mean(values);
  double sum = 0;
  for (const double value : values) {
    sum += (value - center) * (value - center);
  }
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

struct Aggregate {
  const char* name;
  const char* unit;
  double (*of)(const std::vector<double>& values);
};

constexpr Aggregate kAggregates[] = {
    {"mean", "time", mean},
    {"median", "time",
     [](const std::vector<double>& values) { return median(values).value_or(std::nan("")); }},
    {"stddev", "time", standard_deviation},
    {"cv", "percentage",
     [](const std::vector<double>& values) { return standard_deviation(values) / mean(values); }},
};

void append_result(const Result& result, std::size_t family, int blocks, bool aggregates_only,
                   ordered_json& benchmarks) {
  const int repetitions = result.configuration.repetitions;
  const std::string name = result.configuration.name() + kBenchmarkSuffix;
  const double ranks = result.configuration.world_size;
  // In the library's order: what all entries have, then `more`, then the times.
  const auto entry = [&](const std::string& suffix, const char* run_type, const ordered_json& more,
                         const ordered_json& times) {
    ordered_json json = {{"name", name + suffix},          {"family_index", family},
                         {"per_family_instance_index", 0}, {"run_name", name},
                         {"run_type", run_type},           {"repetitions", repetitions}};
    json.update(more);
    json.update(times);
    return json;
  };
  const auto times = [](std::size_t iterations, double step_ms, double ranks_value, double speed) {
    return ordered_json{{"iterations", iterations}, {"real_time", step_ms},
                        {"cpu_time", 0.0},          {"time_unit", "ms"},
                        {"ranks", ranks_value},     {"samples_per_second", speed}};
  };
  std::vector<double> medians_ms;
  const std::vector<double> of_blocks_ms = result.repetition_medians_ms();
  for (int block = 0; block < blocks; ++block) {
    if (result.configuration.runs_in(block)) {
      const auto k = static_cast<std::size_t>(block);
      medians_ms.push_back(k < of_blocks_ms.size() ? of_blocks_ms[k] : std::nan(""));
    }
  }
  std::vector<double> known_ms;
  std::vector<double> speeds;
  ordered_json iterations = ordered_json::array();
  for (std::size_t k = 0; k < medians_ms.size(); ++k) {
    ordered_json more = {{"repetition_index", k}, {"threads", 1}};
    if (std::isfinite(medians_ms[k])) {
      known_ms.push_back(medians_ms[k]);
      speeds.push_back(static_cast<double>(result.configuration.global_batch) /
                       (medians_ms[k] / 1e3));
      iterations.push_back(
          entry("", "iteration", more, times(1, known_ms.back(), ranks, speeds.back())));
    } else {
      more["error_occurred"] = true;
      more["error_message"] = result.error.empty() ? kInterrupted : result.error;
      iterations.push_back(
          entry("", "iteration", more,
                {{"iterations", 1}, {"real_time", 0.0}, {"cpu_time", 0.0}, {"time_unit", "ms"}}));
    }
  }
  const bool has_aggregates = known_ms.size() > 1;
  if (!has_aggregates || !aggregates_only) {
    benchmarks.insert(benchmarks.end(), iterations.begin(), iterations.end());
  }
  for (const auto& [aggregate, unit, of] : kAggregates) {
    if (has_aggregates) {
      benchmarks.push_back(
          entry(std::string("_") + aggregate, "aggregate",
                {{"threads", 1}, {"aggregate_name", aggregate}, {"aggregate_unit", unit}},
                times(known_ms.size(), of(known_ms),
                      of(std::vector<double>(known_ms.size(), ranks)), of(speeds))));
    }
  }
}

/// As the library's own reporter writes it.
ordered_json library_context() {
  const std::string executable = std::filesystem::read_symlink("/proc/self/exe").string();
  benchmark::BenchmarkReporter::Context::executable_name = executable.c_str();
  std::ostringstream text;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&text);
  reporter.ReportContext(benchmark::BenchmarkReporter::Context());
  reporter.Finalize();
  benchmark::BenchmarkReporter::Context::executable_name = nullptr;
  return ordered_json::parse(text.str()).at("context");
}

}  // namespace

ordered_json google_benchmark_document(const Measurements& measurements,
                                       const ordered_json& machine, const BenchmarkOutput& output) {
  ordered_json context = library_context();
  context["library_build_type"] = "release";  // of what is measured, not of a system's library
  context["host_name"] = machine.at("host").is_null() ? "" : machine.at("host");
  context["load_avg"] = machine.at("load_average");  // before the measurements
  for (const auto& [key, value] : output.context) {
    context[key] = value;
  }
  ordered_json benchmarks = ordered_json::array();
  for (std::size_t i = 0; i < measurements.results.size(); ++i) {
    append_result(measurements.results[i], i, measurements.blocks(), output.aggregates_only,
                  benchmarks);
  }
  return {{"context", context}, {"benchmarks", benchmarks}};
}

}  // namespace ddp::bench
