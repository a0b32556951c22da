// bench_micro: Google Benchmark for all-reduces and for the pieces of a training step, with as many
// ranks as wanted at work at the same time.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/micro/options.hpp"
#include "bench/micro/ranks.hpp"
#include "bench/micro/suites.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"
#include "common/launch/run_main.hpp"
#include "common/launch/spawn.hpp"

namespace ddp::micro {
namespace {

/// @throws UsageError naming the first flag that Google Benchmark does not know
void initialize(const MicroOptions& options, bool reports) {
  static std::vector<std::string> arguments;  // Google Benchmark keeps a pointer to the first
  arguments = {options.stage.program};
  std::ranges::copy_if(options.benchmark_flags, std::back_inserter(arguments),
                       [reports](const std::string& flag) {
                         return reports || !flag.starts_with("--benchmark_out=");
                       });
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  int count = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  benchmark::Initialize(&count, argv.data());
  if (count > 1) {
    throw UsageError(fmt::format("{}: got a flag that Google Benchmark does not know", argv[1]));
  }
}

int run(int argc, char** argv, std::string& who) {
  constexpr int kDefaultProcesses = 2;
  const MicroOptions options = parse_micro_options(argc, argv);
  LaunchEnvironment environment = read_launch_environment(options.stage);
  const bool started_by_hand = environment.launcher == "none";
  initialize(options, started_by_hand || environment.rank == 0);
  if (started_by_hand && options.nprocs != 1) {
    return start_ranks(options.stage.program, {argv, argv + argc},
                       options.nprocs.value_or(kDefaultProcesses));
  }
  if (environment.launcher == "spawn") {
    // It was executed as /proc/self/exe, and would be called "exe" in ps and top.
    prctl(PR_SET_NAME, options.stage.program.c_str());
  }
  const int size = environment.world_size;
  if (size > 1) {
    who = fmt::format("[rank {}] ", environment.rank);
  } else if (options.suite == "all_reduce") {
    throw UsageError(fmt::format("--suite all_reduce: got world size 1 ({}), expected 2 or more",
                                 environment.launcher));
  }
  if (size != options.nprocs.value_or(size)) {
    throw UsageError(fmt::format("--nprocs: got {}, expected {}, as many as {} started",
                                 *options.nprocs, size, environment.launcher));
  }
  Ranks ranks(options, std::move(environment));
  benchmark::AddCustomContext("libtorch", DDP_TORCH_VERSION);
  benchmark::AddCustomContext("device", ranks.device().is_cuda() ? "cuda" : "cpu");
  benchmark::AddCustomContext("ranks", std::to_string(ranks.size()));
  benchmark::AddCustomContext("threads", std::to_string(options.stage.threads));
  options.suite == "pieces" ? run_pieces(options, ranks) : run_all_reduces(options, ranks);
  ranks.disconnect();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp::micro

int main(int argc, char** argv) {
  return ddp::internal::guarded(argc, argv,
                                [&](std::string& who) { return ddp::micro::run(argc, argv, who); });
}
