// bench_micro: Google Benchmark for what a training step is made of, with as many ranks as wanted.

#include <sys/prctl.h>

#include "bench/micro/benchmark_flags.hpp"
#include "bench/micro/options.hpp"
#include "bench/micro/runner.hpp"
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
    team.dismiss();
  } else {
    team.follow(entries);
  }
  team.leave();
}

int run(int argc, char** argv, std::string& who) {
  const MicroOptions options = parse_micro_options(argc, argv);
  initialize_benchmark(options.benchmark_flags, options.repetitions);
  const LaunchEnvironment environment = read_launch_environment(options.stage);
  if (environment.launcher == "none" && options.suite != Suite::kPieces) {
    return start_ranks(options.stage.program, {argv, argv + argc}, options.processes());
  }
  if (environment.launcher == "spawn") {
    // It was executed as /proc/self/exe, and would be called "exe" in ps and top.
    prctl(PR_SET_NAME, options.stage.program.c_str());
  }
  if (environment.world_size > 1) {
    who = "[rank " + std::to_string(environment.rank) + "] ";
  }
  if (options.suite == Suite::kPieces && environment.world_size > 1) {
    throw UsageError("--suite pieces: got world size " + std::to_string(environment.world_size) +
                     " (" + environment.launcher + "), expected one process");
  }
  if (options.suite == Suite::kAllReduce && environment.world_size == 1) {
    throw UsageError("--suite all_reduce: got world size 1 (" + environment.launcher +
                     "), expected 2 ranks or more");
  }
  if (environment.world_size != options.nprocs.value_or(environment.world_size)) {
    throw UsageError("--nprocs: got " + std::to_string(*options.nprocs) + ", expected " +
                     std::to_string(environment.world_size) + ", what " + environment.launcher +
                     " started");
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
