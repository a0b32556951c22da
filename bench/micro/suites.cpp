#include "bench/micro/suites.hpp"

#include <ostream>
#include <vector>

#include "common/base/exit_codes.hpp"

namespace ddp::micro {
namespace {

class Silent : public benchmark::BenchmarkReporter {
 public:
  Silent() {
    SetOutputStream(&nowhere_);
    SetErrorStream(&nowhere_);
  }
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}

 private:
  std::ostream nowhere_{nullptr};
};

}  // namespace

void add_benchmark(const std::string& name, benchmark::TimeUnit unit, Ranks& ranks,
                   const std::function<Piece(benchmark::UserCounters& counters)>& make) {
  const auto measure_once = [&ranks, make](benchmark::State& state) {
    const Piece piece = make(state.counters);
    for (auto _ : state) {
      state.SetIterationTime(ranks.measure(piece));
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), measure_once)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(unit);
}

void run_benchmarks(const Ranks& ranks) {
  Silent silent;
  if (benchmark::RunSpecifiedBenchmarks(ranks.rank() == 0 ? nullptr : &silent) == 0) {
    throw UsageError(
        "--benchmark_filter: got one that selects nothing, expected one of the names that "
        "--benchmark_list_tests prints");
  }
}

}  // namespace ddp::micro
