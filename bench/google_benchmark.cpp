#include "bench/report.hpp"

#include <benchmark/benchmark.h>

#include <sstream>

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

Json make_benchmark(const Run& run, std::size_t family, std::size_t repetition) {
  const bool is_timed = run.has_speed() && repetition < run.repetitions.size();
  const double step_ms = is_timed ? run.repetitions[repetition].median_ms : 0;
  const std::string name = run.name + kBenchmarkSuffix;
  Json made = {{"name", name},
               {"family_index", family},
               {"per_family_instance_index", 0},
               {"run_name", name},
               {"run_type", "iteration"},
               {"repetitions", run.repetitions.size()},
               {"repetition_index", repetition},
               {"threads", 1},
               {"iterations", 1},
               {"real_time", step_ms},
               {"cpu_time", 0.0},
               {"time_unit", "ms"},
               {"ranks", run.world_size}};
  if (step_ms > 0 && run.samples_per_second) {
    made["samples_per_second"] = static_cast<double>(*run.global_batch) / step_ms * 1e3;
  } else if (step_ms <= 0) {
    made["error_occurred"] = true;
    made["error_message"] = run.error.value_or("not timed");
  }
  return made;
}

}  // namespace

Json google_benchmark_document(const Report& report) {
  std::ostringstream text;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&text);
  reporter.ReportContext(benchmark::BenchmarkReporter::Context());
  reporter.Finalize();
  Json context = Json::parse(text.str()).at("context");
  context["library_build_type"] = "release";  // of the programs, not of the system's library
  Json benchmarks = Json::array();
  for (std::size_t family = 0; family < report.runs.size(); ++family) {
    const Run& run = report.runs[family];
    for (std::size_t k = 0; k < std::max<std::size_t>(run.repetitions.size(), 1); ++k) {
      benchmarks.push_back(make_benchmark(run, family, k));
    }
  }
  return {{"context", context}, {"benchmarks", benchmarks}};
}

}  // namespace ddp::bench
