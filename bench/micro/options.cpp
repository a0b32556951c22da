#include "bench/micro/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "bench/micro/google_benchmark.hpp"
#include "bench/run/benchmark_flags.hpp"
#include "common/base/command_line.hpp"

namespace ddp::micro {
namespace {

constexpr int kMaxProcesses = 1024;  // as the stages'
constexpr std::int64_t kMaxBytes = std::int64_t{8} << 30;
constexpr double kMaxSeconds = 3600;
const Choices kSuites = {"limits", "all_reduce", "pieces"};

constexpr const char* kFooter =
    "Google Benchmark's own flags work too (--benchmark_out=FILE, --benchmark_filter=REGEX, ...).\n"
    "How often a benchmark is repeated follows from --min-seconds: 10 to 10,000 times, after a\n"
    "warm-up. Under mpirun or another launcher the launcher's processes are the ranks.\n"
    "Exit codes: 0 done, 1 a sum was wrong or a rank failed, 2 usage, 75 port or rendezvous.";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream list(text + separator);
  for (std::string part; std::getline(list, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

std::int64_t parse_bytes(const std::string& name, const std::string& text) {
  const auto bytes = parse_integer<std::int64_t>(name, text, kFloatBytes, kMaxBytes);
  if (bytes % kFloatBytes != 0) {
    throw UsageError(fmt::format("{}: got {}, expected a multiple of 4 (fp32)", name, quote(text)));
  }
  return bytes;
}

/// Powers of 4, from a latency to a bandwidth.
std::vector<std::int64_t> default_sweep() {
  constexpr std::int64_t kLargest = std::int64_t{16} << 20;
  std::vector<std::int64_t> bytes;
  for (std::int64_t size = kFloatBytes; size <= kLargest; size *= 4) {
    bytes.push_back(size);
  }
  return bytes;
}

template <typename T>
void refuse_twice(const std::string& name, std::vector<T> values) {
  std::ranges::sort(values);
  if (const auto twice = std::ranges::adjacent_find(values); twice != values.end()) {
    throw UsageError(fmt::format("{}: got {} twice, expected it once", name, *twice));
  }
}

std::vector<std::int64_t> parse_byte_list(const std::string& name, const std::string& text) {
  std::vector<std::int64_t> bytes;
  if (text != "none") {
    for (const std::string& part : split(text, ',')) {
      bytes.push_back(parse_bytes(name, part));
    }
  }
  refuse_twice(name, bytes);
  return bytes;
}

/// "M=1048576+4096": a name, and the bytes of each bucket.
StepBuckets parse_step(const std::string& name, const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  const size_t equals = text.find('=');
  StepBuckets step{text.substr(0, equals), {}};
  if (equals == std::string::npos || step.name.empty() ||
      step.name.find_first_not_of(kPlain) != std::string::npos) {
    throw UsageError(
        fmt::format("{}: got {}, expected NAME=BYTES+BYTES... with a NAME of letters, "
                    "digits, _, . and -",
                    name, quote(text)));
  }
  for (const std::string& part : split(text.substr(equals + 1), '+')) {
    step.bytes.push_back(parse_bytes(name, part));
  }
  const std::int64_t total = std::accumulate(step.bytes.begin(), step.bytes.end(), std::int64_t{0});
  parse_bytes(name, std::to_string(total));
  return step;
}

/// @param for_stage gets what a stage's own parser will read
void add_options(CommandLine& line, MicroOptions& options, std::vector<std::string>& for_stage) {
  OptionGroup what = line.group("What is measured");
  what.choice("--suite", options.suite, kSuites,
              "the machine's limits, the backends' all-reduce, or pieces of a step");
  what.integer("--nprocs", options.nprocs, 1, kMaxProcesses, "1; all_reduce: 2",
               "ranks, all busy at the same time");
  what.value("--backends", "NAME,...", "auto",
             "that carry the all-reduces, as --backend of a stage",
             [&options](const std::string& name, const std::string& text) {
               options.backends = split(text, ',');
               refuse_twice(name, options.backends);
             });
  what.value("--bytes", "BYTES,...", "4 B to 16 MiB", "sizes of the all-reduces, or none",
             [&options](const std::string& name, const std::string& text) {
               options.bytes = parse_byte_list(name, text);
             });
  what.value("--step", "NAME=BYTES+...", "",
             "a step's buckets: one all-reduce each, all started before any is waited for; may be "
             "given several times",
             [&options](const std::string& name, const std::string& text) {
               options.steps.push_back(parse_step(name, text));
             })
      .repeatable();

  OptionGroup how = line.group("How it is measured");
  const auto forward = [&for_stage](const std::string& name, const std::string& text) {
    if (name == "--threads" && text == "auto") {
      throw UsageError("--threads: got \"auto\", expected a number: pieces are compared by it");
    }
    for_stage.push_back(name + "=" + text);
  };
  how.value("--device", "auto, cpu or cuda", "auto", "what computes", forward);
  how.value("--threads", "N", "1", "CPU threads of each rank", forward);
  how.positive("--min-seconds", "SECONDS", options.min_seconds, kMaxSeconds, "0.2",
               "how long each benchmark is repeated, at least");
  how.integer("--repetitions", options.repetitions, 1, 1000, "1", "of all that, with aggregates");
  how.integer("--passes", options.passes, 1, 1000, "1",
              "over all of them one after the other, each in another order");
  how.value("--timeout", "SECONDS", "120", "for the rendezvous and for every collective", forward);
}

/// What depends on more than one option.
void check_together(const CommandLine& line, const MicroOptions& options) {
  for (const char* const name : {"--backends", "--bytes", "--step"}) {
    if (options.suite != "all_reduce" && line.given(name)) {
      throw UsageError(
          fmt::format("{} was given with --suite {}, expected it only with --suite all_reduce",
                      name, options.suite));
    }
  }
  const int nprocs = options.processes();
  if (options.suite == "pieces" && nprocs != 1) {
    throw UsageError(fmt::format(
        "--nprocs: got {}, expected 1 with --suite pieces, which is one process", nprocs));
  }
  if (options.suite == "all_reduce" && nprocs == 1) {
    throw UsageError("--nprocs: got 1, expected 2 or more with --suite all_reduce");
  }
  std::vector<std::string> names;
  for (const StepBuckets& step : options.steps) {
    names.push_back(step.name);
  }
  refuse_twice("--step", names);
  if (options.bytes.empty() && options.steps.empty()) {
    throw UsageError("--bytes: got \"none\", expected sizes, or a --step to measure");
  }
  for (const std::string& backend : options.backends) {
    stage_options(options, backend);
  }
}

/// The values go through the stages' own parser, so that both accept and refuse the same.
Options parse_as_stage(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {program, "0", "1"});
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  return parse_options(static_cast<int>(argv.size()), argv.data(), Launch::kSpawn);
}

}  // namespace

int MicroOptions::processes() const {
  return nprocs.value_or(suite == "all_reduce" ? 2 : 1);
}

Options stage_options(const MicroOptions& options, const std::string& backend) {
  try {
    Options stage = options.stage;
    stage.backend = parse_as_stage(stage.program, {"--backend=" + backend}).backend;
    return stage;
  } catch (const UsageError& error) {
    const std::string text = error.what();  // "--backend: ..."
    throw UsageError("--backends" + text.substr(std::min(text.find(':'), text.size())));
  }
}

MicroOptions parse_micro_options(int argc, const char* const* argv) {
  MicroOptions options;
  options.bytes = default_sweep();
  bench::BenchmarkArguments arguments = bench::split_arguments(argc, argv);
  options.benchmark_flags = std::move(arguments.benchmark_flags);
  CommandLine line(program_name(argc > 0 ? argv[0] : nullptr),
                   "Google Benchmark for the machine's limits, the backends, and pieces of a step.",
                   "bench_micro " DDP_VERSION ", LibTorch " DDP_TORCH_VERSION, kFooter, 40);
  std::vector<std::string> for_stage;
  add_options(line, options, for_stage);
  line.parse(std::move(arguments.own), ", expected what --help lists");
  if (!line.given("--suite")) {
    throw UsageError("--suite is missing, expected " + join(kSuites));
  }
  options.stage = parse_as_stage(argv[0], for_stage);
  check_together(line, options);
  check_benchmark_flags(options.benchmark_flags);
  return options;
}

}  // namespace ddp::micro
