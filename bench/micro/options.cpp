#include "bench/micro/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>
#include <sstream>

#include "bench/micro/benchmark_flags.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/option_group.hpp"
#include "common/base/parse.hpp"

namespace ddp::micro {
namespace {

using internal::OptionGroup;

constexpr int kMaxProcesses = 1024;  // as the stages'
constexpr std::int64_t kMaxBytes = std::int64_t{8} << 30;
constexpr std::int64_t kFloatBytes = sizeof(float);
constexpr double kMaxSeconds = 3600;
constexpr const char* kSuites[] = {"limits", "all_reduce", "pieces"};

constexpr const char* kFooter =
    "Google Benchmark's own flags work too (--benchmark_out=FILE, --benchmark_filter=REGEX, ...).\n"
    "How often a benchmark is repeated follows from --min-seconds: 10 to 10,000 times, after a\n"
    "warm-up. Under mpirun or another launcher the launcher's processes are the ranks.\n"
    "Exit codes: 0 done, 1 a sum was wrong or a rank failed, 2 usage, 75 port or rendezvous.";

std::string replaced(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

/// The name with dashes; the value keeps its underscores.
std::string with_dashes(const std::string& argument) {
  const size_t end = std::min(argument.find('='), argument.size());
  return replaced(argument.substr(0, end), '_', '-') + argument.substr(end);
}

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
    throw UsageError(name + ": got " + quote(text) + ", expected a multiple of 4 (fp32)");
  }
  return bytes;
}

/// Powers of 4, from a latency to a bandwidth, and the size of a large bucket at the end.
std::vector<std::int64_t> default_sweep() {
  constexpr std::int64_t kLargest = std::int64_t{32} << 20;
  std::vector<std::int64_t> bytes;
  for (std::int64_t size = kFloatBytes; size < kLargest; size *= 4) {
    bytes.push_back(size);
  }
  bytes.push_back(kLargest);
  return bytes;
}

template <typename T>
void refuse_twice(const std::string& name, const std::vector<T>& values) {
  std::set<T> seen;
  for (const T& value : values) {
    if (!seen.insert(value).second) {
      std::ostringstream text;
      text << name << ": got " << value << " twice, expected it once";
      throw UsageError(text.str());
    }
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
    throw UsageError(name + ": got " + quote(text) +
                     ", expected NAME=BYTES+BYTES... with a NAME of letters, digits, _, . and -");
  }
  for (const std::string& part : split(text.substr(equals + 1), '+')) {
    step.bytes.push_back(parse_bytes(name, part));
  }
  parse_bytes(
      name, std::to_string(std::accumulate(step.bytes.begin(), step.bytes.end(), std::int64_t{0})));
  return step;
}

struct Texts {
  std::string suite;
  std::string device = "auto";
  std::string threads = "1";
  std::string timeout = "120";
};

void add_options(CLI::App& app, MicroOptions& options, Texts& texts) {
  OptionGroup what(app, "What is measured");
  what.choice("--suite", texts.suite, {std::begin(kSuites), std::end(kSuites)}, {},
              "the machine's limits, the backends' all-reduce, or pieces of a step");
  what.integer("--nprocs", options.nprocs, 1, kMaxProcesses, "1; all_reduce: 2",
               "ranks, all busy at the same time");
  what.value("--backends", "NAME,...", "auto",
             "that carry the all-reduces, as --backend of a stage",
             [&options](const std::string& name, const std::string& text) {
               options.backends = split(text, ',');
               refuse_twice(name, options.backends);
             });
  what.value("--bytes", "BYTES,...", "4 B to 32 MiB", "sizes of the all-reduces, or none",
             [&options](const std::string& name, const std::string& text) {
               options.bytes = parse_byte_list(name, text);
             });
  what.value("--step", "NAME=BYTES+...", "",
             "a step's buckets: one all-reduce each, all started before any is waited for; may be "
             "given several times",
             [&options](const std::string& name, const std::string& text) {
               options.steps.push_back(parse_step(name, text));
             })
      ->trigger_on_parse()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);

  OptionGroup how(app, "How it is measured");
  const auto keep = [](std::string& target) {
    return [&target](const std::string&, const std::string& text) { target = text; };
  };
  how.value("--device", "auto, cpu or cuda", texts.device, "what computes", keep(texts.device));
  how.value("--threads", "N", texts.threads, "CPU threads of each rank", keep(texts.threads));
  how.value("--min-seconds", "SECONDS", "0.2", "how long each benchmark is repeated, at least",
            [&options](const std::string& name, const std::string& text) {
              options.min_seconds = parse_positive(name, text, kMaxSeconds);
            });
  how.integer("--repetitions", options.repetitions, 1, 1000, "1", "of all that, with aggregates");
  how.value("--timeout", "SECONDS", texts.timeout, "for the rendezvous and for every collective",
            keep(texts.timeout));
}

Suite find_suite(const CLI::App& app, const std::string& name) {
  if (app.count("--suite") == 0) {
    throw UsageError("--suite is missing, expected limits, all_reduce or pieces");
  }
  const auto* const found = std::find(std::begin(kSuites), std::end(kSuites), name);
  return static_cast<Suite>(found - std::begin(kSuites));
}

/// What depends on more than one option.
void check_together(const CLI::App& app, const MicroOptions& options, const std::string& suite) {
  for (const char* const name : {"--backends", "--bytes", "--step"}) {
    if (options.suite != Suite::kAllReduce && app.count(name) > 0) {
      throw UsageError(std::string(name) + " was given with --suite " + suite +
                       ", expected it only with --suite all_reduce");
    }
  }
  const int nprocs = options.nprocs.value_or(options.processes());
  if (options.suite == Suite::kPieces && nprocs != 1) {
    throw UsageError("--nprocs: got " + std::to_string(nprocs) +
                     ", expected 1 with --suite pieces, which is one process");
  }
  if (options.suite == Suite::kAllReduce && nprocs == 1) {
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

/// The values go through the stages' own parser: what they accept and refuse is accepted and
/// refused here.
Options parse_as_stage(const char* program, const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {program, "0", "1"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  return parse_options(static_cast<int>(argv.size()), argv.data(), Launch::kSpawn);
}

}  // namespace

int MicroOptions::processes() const {
  return nprocs.value_or(suite == Suite::kAllReduce ? 2 : 1);
}

Options stage_options(const MicroOptions& options, const std::string& backend) {
  try {
    Options stage = options.stage;
    stage.backend = parse_as_stage(stage.program.c_str(), {"--backend=" + backend}).backend;
    return stage;
  } catch (const UsageError& error) {
    const std::string text = error.what();
    const size_t colon = std::min(text.find(':'), text.size());
    throw UsageError("--backends" + text.substr(colon));
  }
}

MicroOptions parse_micro_options(int argc, const char* const* argv) {
  MicroOptions options;
  options.bytes = default_sweep();
  std::vector<std::string> own_arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (const std::optional<std::string> flag = as_benchmark_flag(argument)) {
      options.benchmark_flags.push_back(*flag);
    } else {
      own_arguments.push_back(argument.starts_with("--") ? with_dashes(argument) : argument);
    }
  }
  CLI::App app("Google Benchmark for the machine's limits, the backends, and pieces of a step.",
               program_name(argc > 0 ? argv[0] : nullptr));
  app.footer(kFooter);
  app.get_formatter()->column_width(40);
  app.set_version_flag("--version", "bench_micro " DDP_VERSION ", LibTorch " DDP_TORCH_VERSION);
  Texts texts;
  add_options(app, options, texts);
  try {
    std::reverse(own_arguments.begin(), own_arguments.end());  // CLI11 takes them from the back
    app.parse(own_arguments);
  } catch (const CLI::Success& help_or_version) {
    std::exit(app.exit(help_or_version));
  } catch (const CLI::ParseError& error) {
    throw UsageError(replaced(error.what(), '\n', ' ') + ", expected what --help lists");
  }
  options.suite = find_suite(app, texts.suite);
  if (texts.threads == "auto") {
    throw UsageError("--threads: got \"auto\", expected a number: pieces are compared by it");
  }
  options.stage = parse_as_stage(argv[0], {"--device=" + texts.device, "--threads=" + texts.threads,
                                           "--timeout=" + texts.timeout});
  check_together(app, options, texts.suite);
  check_benchmark_flags(options.benchmark_flags);
  return options;
}

}  // namespace ddp::micro
