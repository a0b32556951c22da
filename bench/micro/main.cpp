// bench_micro: Google Benchmark for all-reduces and the pieces of a step, with all ranks at once.

#include "bench/micro/suites.hpp"
#include "common/base/command_line.hpp"
#include "common/device/device.hpp"
#include "common/launch/spawn.hpp"

namespace ddp::micro {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

constexpr const char* kFooter =
    "Google Benchmark's own flags work too (--benchmark_out=FILE, --benchmark_filter=REGEX, ...).\n"
    "Under mpirun or another launcher the launcher's processes are the ranks.\n"
    "Exit codes: 0 done, 1 a sum was wrong or a rank failed, 2 usage, 75 port or rendezvous.";

void add_options(CommandLine& line, MicroOptions& options) {
  const auto store_bytes = [&options](const std::string& name, const std::string& text) {
    options.bytes.clear();
    for (const std::string& part : split(text)) {
      options.bytes.push_back(parse_integer<int64_t>(name, part, kFloatBytes, int64_t{8} << 30));
      if (options.bytes.back() % kFloatBytes != 0) {
        refuse("{}: got {}, expected a multiple of 4 (float32)", name, quote(part));
      }
    }
  };
  OptionGroup own = line.group("Benchmarks");
  own.add("--suite", takes::choice(options.suite, {"all_reduce", "pieces"}),
          "all_reduce: all-reduces of --bytes; pieces: parts of a step of --layers, --batch-size");
  own.add("--nprocs", takes::integer(options.stage.nprocs, 1, kMaxNprocs).initially("2"),
          "number of ranks at work at the same time");
  own.add("--bytes", {"BYTES,...", "", "4 B to 16 MiB", store_bytes}, "sizes of the tensors");
  own.add("--min-seconds,--benchmark-min-time",
          takes::positive(options.min_seconds, "SECONDS", 3600), "minimum time of each benchmark");
  add_stage_options(line.group("As in the stages"), options.stage,
                    {"--batch-size,--batch", "--layers", "--device", "--threads",
                     "--backend,--backends", "--timeout"});
}

void check_together(const CommandLine& line, const MicroOptions& options) {
  const bool pieces = options.suite == "pieces";
  for (const char* const name : {"--bytes", "--layers", "--batch-size"}) {
    if (line.given(name) && pieces == (std::string(name) == "--bytes")) {
      refuse("{}: got it with --suite {}, expected it only with --suite {}", name, options.suite,
             pieces ? "all_reduce" : "pieces");
    }
  }
  for (const std::string& flag : options.benchmark_flags) {
    if (flag.starts_with("--benchmark_enable_random_interleaving")) {
      refuse("{}: expected no such flag: each rank would draw another order", flag);
    }
  }
}

/// Dashes and underscores in option names are equal.
MicroOptions parse_options(int argc, const char* const* argv) {
  MicroOptions options;
  std::vector<std::string> own;
  for (int i = 1; i < argc; ++i) {
    std::string argument = with_dashes(argv[i]);
    if (!argument.starts_with("--benchmark-") || argument.starts_with("--benchmark-min-time=")) {
      own.push_back(argument);
      continue;
    }
    std::replace(argument.begin() + 2, std::ranges::find(argument, '='), '-', '_');
    if (const std::string name = "--benchmark_out"; argument.starts_with(name + "=")) {
      const std::string path = parse_path(name, argument.substr(name.size() + 1));
      check_output_file(name, path, /*is_replaced=*/false);
      argument = name + "=" + path;
    }
    options.benchmark_flags.push_back(argument);
  }
  options.stage.program = program_name();
  options.stage.started_by = StartedBy::kProgram;
  CommandLine line(options.stage.program,
                   "Google Benchmark for all-reduces and for the pieces of a training step.",
                   "bench_micro " DDP_VERSION ", LibTorch " DDP_TORCH_VERSION, kFooter, 40);
  add_options(line, options);
  line.require("--suite");
  line.parse(std::move(own));
  check_together(line, options);
  return options;
}

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
  MicroOptions options = parse_options(argc, argv);
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
