#include "bench/micro/runner.hpp"

#include <benchmark/benchmark.h>

#include <iostream>
#include <limits>
#include <memory>

#include "bench/micro/benchmark_flags.hpp"
#include "bench/report/statistics.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"

namespace ddp::micro {
namespace {

std::unique_ptr<benchmark::BenchmarkReporter> file_reporter(const std::string& format) {
  if (format == "json") {
    return std::make_unique<benchmark::JSONReporter>();
  }
  if (format == "console") {
    return std::make_unique<benchmark::ConsoleReporter>(benchmark::ConsoleReporter::OO_None);
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return std::make_unique<benchmark::CSVReporter>();
#pragma GCC diagnostic pop
}

/// Passes everything on, but takes from the names what Google Benchmark adds to them: how they were
/// registered ("/iterations:1/manual_time") is no property of what is measured.
class ExactNames : public benchmark::BenchmarkReporter {
 public:
  explicit ExactNames(benchmark::BenchmarkReporter& inner) : inner_(inner) {}

  bool ReportContext(const Context& context) override {
    inner_.SetOutputStream(&GetOutputStream());
    inner_.SetErrorStream(&GetErrorStream());
    return inner_.ReportContext(context);
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> renamed = runs;
    for (Run& run : renamed) {
      benchmark::BenchmarkName name;
      name.function_name = run.run_name.function_name;
      run.run_name = name;
    }
    inner_.ReportRuns(renamed);
  }

  void Finalize() override { inner_.Finalize(); }

 private:
  benchmark::BenchmarkReporter& inner_;
};

void count_times(const std::vector<double>& seconds, benchmark::UserCounters& counters) {
  constexpr double kMicrosecondsPerSecond = 1e6;
  std::vector<double> time_us;
  time_us.reserve(seconds.size());
  for (const double value : seconds) {
    time_us.push_back(value * kMicrosecondsPerSecond);
  }
  const bench::Distribution distribution = bench::summarize(time_us);
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  counters["time_us_median"] = distribution.median.value_or(kUnknown);
  counters["time_us_p10"] = distribution.p10.value_or(kUnknown);
  counters["time_us_p90"] = distribution.p90.value_or(kUnknown);
  counters["time_us_p95"] = distribution.p95.value_or(kUnknown);
  counters["time_us_n"] = static_cast<double>(distribution.n);
}

/// Google Benchmark wants an error to come from inside the loop.
void fail(benchmark::State& state, const std::string& error) {
  while (state.KeepRunning()) {
    state.SkipWithError(error.c_str());
    break;
  }
}

/// All that the ranks did is one batch of iterations, whose times are set by hand.
/// @param iterations of the repetition before, since Google Benchmark wants all to have as many; 0:
/// this is the first
void run_entry(benchmark::State& state, const std::vector<Entry>& entries, size_t index,
               std::int64_t& iterations, Team& team, std::vector<std::string>& errors) {
  const auto report = [&](const Series& series, const Exercise& exercise) {
    const std::vector<double> seconds = series.slowest();
    iterations = static_cast<std::int64_t>(seconds.size());
    while (state.KeepRunningBatch(iterations)) {
      for (const double iteration_seconds : seconds) {
        state.SetIterationTime(iteration_seconds);
      }
    }
    state.counters["ranks"] = team.world_size();
    exercise.report(series, state.counters);
    count_times(seconds, state.counters);
  };
  try {
    team.lead(entries, index, iterations, report);
  } catch (const WrongResult& error) {
    errors.push_back(entries[index].name + ": " + error.what());
    fail(state, error.what());
  }
}

}  // namespace

void run_benchmarks(const std::vector<Entry>& entries, const MicroOptions& options, Team& team) {
  const std::vector<std::string>& flags = options.benchmark_flags;
  std::vector<size_t> selected;
  for (size_t index = 0; index < entries.size(); ++index) {
    if (is_selected(flags, entries[index].name)) {
      selected.push_back(index);
    }
  }
  if (selected.empty()) {
    throw UsageError("--benchmark_filter: got " +
                     quote(flag_value(flags, "--benchmark_filter").value_or("")) +
                     ", expected one that selects something --benchmark_list_tests lists");
  }
  if (list_only(flags)) {
    for (const size_t index : selected) {
      std::cout << entries[index].name << '\n';
    }
    return;
  }
  std::vector<std::int64_t> iterations(entries.size(), 0);
  std::vector<std::string> errors;
  for (const size_t index : selected) {
    benchmark::RegisterBenchmark(entries[index].name.c_str(),
                                 [&, index](benchmark::State& state) {
                                   run_entry(state, entries, index, iterations[index], team,
                                             errors);
                                 })
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::AddCustomContext("device", team.device().is_cuda() ? "cuda" : "cpu");
  ExactNames display(*benchmark::CreateDefaultDisplayReporter());
  const std::string file = flag_value(flags, "--benchmark_out").value_or("");
  const auto inner = file_reporter(flag_value(flags, "--benchmark_out_format").value_or("json"));
  ExactNames to_file(*inner);
  benchmark::RunSpecifiedBenchmarks(&display, file.empty() ? nullptr : &to_file);
  if (!errors.empty()) {
    throw Error(ExitCode::kTrainingFailed, errors.front());
  }
}

}  // namespace ddp::micro
