#include "bench/report/google_benchmark.hpp"

#include <benchmark/benchmark.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "bench/report/statistics.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

/// "2026-01-31T12:00:00+00:00"
std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof(text), "%FT%T%z", &local);
  return std::string(text).insert(22, ":");
}

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

/// What all entries of one configuration begin with.
ordered_json heading(const std::string& name, std::size_t family, int repetitions) {
  return {{"name", name},     {"family_index", family},  {"per_family_instance_index", 0},
          {"run_name", name}, {"run_type", "iteration"}, {"repetitions", repetitions}};
}

void append_times(ordered_json& entry, std::size_t iterations, double step_ms, double ranks,
                  double samples_per_second) {
  entry["iterations"] = iterations;
  entry["real_time"] = step_ms;
  entry["cpu_time"] = 0.0;
  entry["time_unit"] = "ms";
  entry["ranks"] = ranks;
  entry["samples_per_second"] = samples_per_second;
}

void append_result(const Result& result, std::size_t family, int repetitions, bool aggregates_only,
                   ordered_json& benchmarks) {
  const std::string name = result.configuration.name() + kBenchmarkSuffix;
  const double ranks = result.configuration.world_size;
  std::vector<double> medians_ms = result.repetition_medians_ms();
  medians_ms.resize(static_cast<std::size_t>(repetitions), std::nan(""));
  std::vector<double> known_ms;
  std::vector<double> speeds;
  ordered_json iterations = ordered_json::array();
  for (std::size_t k = 0; k < medians_ms.size(); ++k) {
    ordered_json entry = heading(name, family, repetitions);
    entry["repetition_index"] = k;
    entry["threads"] = 1;
    if (std::isfinite(medians_ms[k])) {
      known_ms.push_back(medians_ms[k]);
      speeds.push_back(static_cast<double>(result.configuration.global_batch) /
                       (medians_ms[k] / 1e3));
      append_times(entry, 1, known_ms.back(), ranks, speeds.back());
    } else {
      entry.update({{"error_occurred", true},
                    {"error_message", result.error.empty() ? kInterrupted : result.error},
                    {"iterations", 1},
                    {"real_time", 0.0},
                    {"cpu_time", 0.0},
                    {"time_unit", "ms"}});
    }
    iterations.push_back(entry);
  }
  const bool has_aggregates = known_ms.size() > 1;
  if (!has_aggregates || !aggregates_only) {
    benchmarks.insert(benchmarks.end(), iterations.begin(), iterations.end());
  }
  for (const Aggregate& aggregate : kAggregates) {
    if (has_aggregates) {
      ordered_json entry = heading(name, family, repetitions);
      entry["name"] = name + "_" + aggregate.name;
      entry["run_type"] = "aggregate";
      entry["threads"] = 1;
      entry["aggregate_name"] = aggregate.name;
      entry["aggregate_unit"] = aggregate.unit;
      append_times(entry, known_ms.size(), aggregate.of(known_ms),
                   aggregate.of(std::vector<double>(known_ms.size(), ranks)), aggregate.of(speeds));
      benchmarks.push_back(entry);
    }
  }
}

}  // namespace

ordered_json google_benchmark_document(const Measurements& measurements, int repetitions,
                                       const ordered_json& machine, const BenchmarkOutput& output) {
  // As the library's own reporter writes it.
  const benchmark::CPUInfo& cpu = benchmark::CPUInfo::Get();
  ordered_json context = {
      {"date", local_time()},
      {"host_name", machine.at("host").is_null() ? "" : machine.at("host")},
      {"executable", std::filesystem::read_symlink("/proc/self/exe").string()},
      {"num_cpus", cpu.num_cpus},
      {"mhz_per_cpu", std::lround(cpu.cycles_per_second / 1e6)},
  };
  if (cpu.scaling != benchmark::CPUInfo::UNKNOWN) {
    context["cpu_scaling_enabled"] = cpu.scaling == benchmark::CPUInfo::ENABLED;
  }
  context["caches"] = ordered_json::array();
  for (const benchmark::CPUInfo::CacheInfo& cache : cpu.caches) {
    context["caches"].push_back({{"type", cache.type},
                                 {"level", cache.level},
                                 {"size", cache.size},
                                 {"num_sharing", cache.num_sharing}});
  }
  context["load_avg"] = machine.at("load_average");
  context["library_build_type"] = "release";
  for (const auto& [key, value] : output.context) {
    context[key] = value;
  }
  ordered_json benchmarks = ordered_json::array();
  for (std::size_t i = 0; i < measurements.results.size(); ++i) {
    append_result(measurements.results[i], i, repetitions, output.aggregates_only, benchmarks);
  }
  return {{"context", context}, {"benchmarks", benchmarks}};
}

}  // namespace ddp::bench
