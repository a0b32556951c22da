#include "bench/report/google_benchmark.hpp"

#include <benchmark/benchmark.h>

#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "bench/report/benchmark_json.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

/// Google Benchmark insists on equal iteration counts over repetitions, failed ones included, so
/// the error has to come from inside the loop.
void fail(benchmark::State& state, const std::string& error) {
  while (state.KeepRunning()) {
    state.SkipWithError(error.c_str());
    break;
  }
}

/// @param k which repetition
void replay(benchmark::State& state, const Result& result, std::size_t k) {
  const Configuration& configuration = result.configuration;
  if (!result.error.empty()) {
    fail(state, result.error);
    return;
  }
  if (k >= result.repetitions.size() || !result.repetitions[k]) {
    fail(state, kInterrupted);
    return;
  }
  const double step_s = result.repetitions[k]->median_ms / 1e3;
  while (state.KeepRunning()) {
    state.SetIterationTime(step_s);
  }
  state.counters["ranks"] = configuration.world_size;
  state.counters["samples_per_second"] = static_cast<double>(configuration.global_batch) / step_s;
}

/// Google Benchmark's JSON, kept instead of printed.
class CapturingReporter : public benchmark::BenchmarkReporter {
 public:
  CapturingReporter() {
    json_.SetOutputStream(&text_);
    json_.SetErrorStream(&std::cerr);
    SetOutputStream(&std::cout);  // for --benchmark_list_tests
    SetErrorStream(&std::cerr);
  }
  bool ReportContext(const Context& context) override { return json_.ReportContext(context); }
  void ReportRuns(const std::vector<Run>& runs) override { json_.ReportRuns(runs); }
  void Finalize() override { json_.Finalize(); }

  std::string text() const { return text_.str(); }

 private:
  benchmark::JSONReporter json_;
  std::ostringstream text_;
};

template <typename Function>
void register_benchmark(const Configuration& configuration, Function function) {
  benchmark::RegisterBenchmark(configuration.name().c_str(), function)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

void initialize_benchmark(const Settings& settings) {
  // Google Benchmark keeps a pointer to argv[0].
  static std::vector<std::string> arguments;
  arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
               "--benchmark_repetitions=" + std::to_string(settings.repetitions)};
  arguments.insert(arguments.end(), settings.benchmark_flags.begin(),
                   settings.benchmark_flags.end());
  // The runs have been made, in an order of our own, when Google Benchmark hears of them.
  arguments.emplace_back("--benchmark_enable_random_interleaving=false");
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) {
    throw UsageError(std::string("Google Benchmark does not know ") + pointers[1] +
                     ", or its value");
  }
}

void list_benchmarks(const Plan& plan) {
  for (const Configuration& configuration : plan.configurations) {
    register_benchmark(configuration, [](benchmark::State& state) { fail(state, ""); });
  }
  CapturingReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
}

nlohmann::ordered_json report_through_benchmark(const Report& report) {
  std::vector<std::size_t> next(report.results.size());
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    register_benchmark(report.results[i].configuration, [&report, &next, i](benchmark::State& s) {
      replay(s, report.results[i], next[i]++);
    });
  }
  CapturingReporter reporter;
  // All of them: --benchmark_filter has chosen the stages' runs, whose controls would not match it.
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");
  return parse_benchmark_json(reporter.text());
}

}  // namespace ddp::bench
