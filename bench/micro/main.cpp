// bench_micro: Google Benchmark for what a training step is made of, with as many ranks as wanted.
#include <fmt/format.h>
#include <sys/prctl.h>

#include "bench/micro/google_benchmark.hpp"
#include "bench/micro/options.hpp"
#include "bench/micro/suites.hpp"
#include "bench/micro/team.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/launch/run_main.hpp"
#include "common/launch/spawn.hpp"

namespace ddp::micro {
namespace {

void run_rank(const MicroOptions& options, const LaunchEnvironment& environment) {
  Team team(options, environment);
  const std::vector<Entry> entries = make_entries(options, team);
  if (team.rank() == 0) {
    run_benchmarks(entries, options, team);
  } else {
    team.follow(entries);
  }
  team.leave();
}

int run(int argc, char** argv, std::string& who) {
  const MicroOptions options = parse_micro_options(argc, argv);
  initialize_benchmark(options.benchmark_flags, options.repetitions);
  const LaunchEnvironment environment = read_launch_environment(options.stage);
  if (environment.launcher == "none" && options.suite != "pieces") {
    return start_ranks(options.stage.program, {argv, argv + argc}, options.processes());
  }
  if (environment.launcher == "spawn") {
    // It was executed as /proc/self/exe, and would be called "exe" in ps and top.
    prctl(PR_SET_NAME, options.stage.program.c_str());
  }
  const int ranks = environment.world_size;
  if (ranks > 1) {
    who = fmt::format("[rank {}] ", environment.rank);
  }
  if (options.suite == "pieces" && ranks > 1) {
    throw UsageError(fmt::format("--suite pieces: got world size {} ({}), expected one process",
                                 ranks, environment.launcher));
  }
  if (options.suite == "all_reduce" && ranks == 1) {
    throw UsageError(
        fmt::format("--suite all_reduce: got world size 1 ({}), expected 2 ranks or more",
                    environment.launcher));
  }
  if (ranks != options.nprocs.value_or(ranks)) {
    throw UsageError(fmt::format("--nprocs: got {}, expected {}, what {} started", *options.nprocs,
                                 ranks, environment.launcher));
  }
  run_rank(options, environment);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp::micro

int main(int argc, char** argv) {
  return ddp::internal::guarded(argc, argv,
                                [&](std::string& who) { return ddp::micro::run(argc, argv, who); });
}
