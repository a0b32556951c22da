#include "bench/micro/suites.hpp"

#include <ostream>

#include "common/base/exit_codes.hpp"

namespace ddp::micro {
void add_benchmark(const std::string& name, benchmark::TimeUnit unit, const Ranks& ranks,
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
  std::ostream nowhere(nullptr);
  benchmark::ConsoleReporter silent;
  silent.SetOutputStream(&nowhere);
  silent.SetErrorStream(&nowhere);
  if (benchmark::RunSpecifiedBenchmarks(ranks.rank() == 0 ? nullptr : &silent) == 0) {
    refuse(
        "--benchmark_filter: got one that selects nothing, expected one of the names that "
        "--benchmark_list_tests prints");
  }
}

}  // namespace ddp::micro
