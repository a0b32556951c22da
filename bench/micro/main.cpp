// bench_micro: Google Benchmark for all-reduces and the pieces of a step, with all ranks at once.

#include "bench/micro/suites.hpp"
#include "common/device/device.hpp"
#include "common/launch/spawn.hpp"

namespace ddp::micro {
namespace {

void initialize(const MicroOptions& options, bool reports) {
  static std::vector<std::string> arguments;  // Google Benchmark keeps a pointer to the first
  arguments = {options.stage.program};
  std::ranges::copy_if(options.benchmark_flags, std::back_inserter(arguments),
                       [reports](const std::string& flag) {
                         return reports || !flag.starts_with("--benchmark_out=");
                       });
  std::vector<char*> argv;
  std::ranges::transform(arguments, std::back_inserter(argv),
                         [](std::string& argument) { return argument.data(); });
  int count = static_cast<int>(argv.size());
  argv.push_back(nullptr);
  benchmark::Initialize(&count, argv.data());
  if (count > 1) {
    refuse("{}: got a flag that Google Benchmark does not know", argv[1]);
  }
}

void check_world(const MicroOptions& options, int size, const std::string& launcher) {
  if (size == 1 && options.suite == "all_reduce") {
    refuse("--suite all_reduce: got one rank, expected --nprocs 2 or more");
  }
  if (size != options.stage.nprocs.value_or(size)) {
    refuse("--nprocs: got {}, expected {}, as many as {} started", *options.stage.nprocs, size,
           launcher);
  }
}

int run(int argc, char** argv, std::string& who) {
  MicroOptions options = parse_micro_options(argc, argv);
  const LaunchEnvironment launch = read_launch_environment();
  const bool is_alone = launch.launcher == "none";
  const int size = is_alone ? options.stage.nprocs.value_or(2) : launch.world_size;
  who = name_of_rank(launch);
  initialize(options, launch.rank == 0);
  check_world(options, size, launch.launcher);
  options.stage.threads = resolve_threads(options.stage, launch);
  resolve_options(options.stage, size);
  if (is_alone && size > 1) {
    return start_ranks(options.stage.program, {argv, argv + argc}, size);
  }
  const torch::Device device = set_device(options.stage, launch.local_rank);
  if (size > 1) {
    init_process_group(options.stage, launch, device);
  }
  Ranks ranks(device, world(), options.min_seconds);
  benchmark::AddCustomContext("libtorch", DDP_TORCH_VERSION);
  benchmark::AddCustomContext("device", device.is_cuda() ? "cuda" : "cpu");
  benchmark::AddCustomContext("ranks", std::to_string(size));
  benchmark::AddCustomContext("threads", std::to_string(options.stage.threads));
  options.suite == "pieces" ? run_pieces(options, ranks) : run_all_reduces(options, ranks);
  if (size > 1) {
    destroy_process_group();
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace
}  // namespace ddp::micro

int main(int argc, char** argv) {
  return ddp::run_program([&](std::string& who) { return ddp::micro::run(argc, argv, who); });
}
