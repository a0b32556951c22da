#include "bench/run/settings.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>

#include "bench/report/output_file.hpp"
#include "bench/run/benchmark_flags.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"

namespace ddp::bench {
namespace {

constexpr const char* kDescription =
    "Runs the stages of this suite at several world sizes, checks that they train to the same\n"
    "weights, measures them interleaved, and says which is how fast and why.";

#ifdef DDP_VERSION
constexpr const char* kVersion = "bench " DDP_VERSION ", report schema 1";
#else
constexpr const char* kVersion = "bench, report schema 1";
#endif

constexpr double kMaxBucketMib = 1048576;
constexpr double kMaxSeconds = 1e7;

constexpr const char* kFooter =
    "bench compare A.json B.json finds what became slower between two reports; bench merge\n"
    "OUT.json A.json B.json makes one report of several; bench html REPORT.json PAGE.html makes\n"
    "the page of one. Each has a --help of its own.\n"
    "Google Benchmark's own flags (--benchmark_filter=REGEX, --benchmark_out=FILE, ...) work too.\n"
    "Exit codes: 0 done, 1 a configuration failed or the run was interrupted, 2 usage.";

std::string replaced(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

/// "--world_sizes=1,2" -> "--world-sizes=1,2"; the value keeps its underscores.
std::string with_dashes(const std::string& argument) {
  const std::size_t end = argument.find('=');
  return replaced(argument.substr(0, end), '_', '-') +
         (end == std::string::npos ? "" : argument.substr(end));
}

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

/// CLI11 itself would take "010" for 8, "-1" for the largest seed, and "nan" for any number.
template <typename Integer>
auto integer(const std::string& name, Integer minimum, Integer maximum) {
  return [=](const std::string& text) {
    return std::to_string(parse_integer<Integer>(name, text, minimum, maximum));
  };
}

auto positive(const std::string& name, double maximum) {
  return [=](const std::string& text) {
    parse_positive(name, text, maximum);
    return text;
  };
}

/// Named twice is as good as once: two runs of one name would be no report that others can read.
template <typename T>
void drop_repeated(std::vector<T>& values) {
  std::vector<T> once;
  for (const T& value : values) {
    if (std::find(once.begin(), once.end(), value) == once.end()) {
      once.push_back(value);
    }
  }
  values = std::move(once);
}

}  // namespace

Settings parse_settings(int argc, const char* const* argv) {
  Settings settings;
  std::vector<std::string> own_arguments;
  for (int i = 1; i < argc; ++i) {
    settings.arguments.emplace_back(argv[i]);
    std::string argument = argv[i];
    if (!starts_with(argument, "--")) {
      own_arguments.push_back(argument);
    } else if (starts_with(with_dashes(argument), "--benchmark-")) {
      const std::size_t end = argument.find('=');
      settings.benchmark_flags.push_back(
          replaced(argument.substr(0, end), '-', '_').replace(0, 2, "--") +
          (end == std::string::npos ? "" : argument.substr(end)));
    } else {
      own_arguments.push_back(with_dashes(argument));
    }
  }

  CLI::App app(kDescription, "bench");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string(kVersion));
  app.get_formatter()->column_width(34);

  constexpr const char* kWhat = "What is compared";
  app.add_option("--stages", settings.stages,
                 "programs, or numbers: 03 is all of stage 03; 01 is always the baseline (default: "
                 "the main programs and 03 by hand; of 05 one launcher and 2 ranks only)")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--world-sizes", settings.world_sizes,
                 "processes, or replicas in stage 02 (default: 1,2,4 as far as they fit)")
      ->delimiter(',')
      ->type_name("N,...")
      ->transform(integer("--world-sizes", 1, 4096))
      ->group(kWhat);
  app.add_option("--launchers", settings.launchers,
                 "spawn, torchrun, mpirun, srun (default: all that are there)")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->check(CLI::IsMember({"spawn", "torchrun", "mpirun", "srun"}))
      ->group(kWhat);
  app.add_option(
         "--backends", settings.backends,
         "shm, gloo, mpi (under mpirun only), hierarchical, nccl (default: shm on CPUs of one "
         "host, hierarchical on several with several ranks each, else gloo; nccl on GPUs)")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--models", settings.models,
                 "T 20-1 b32, S 64-128-128-10 b32, M 784-512-512-10 b64, L 1024x4 b64, digits "
                 "(default: T,digits)")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--scaling", settings.scaling,
                 "weak: the model's batch per rank; strong: that times the largest world size, "
                 "over all ranks (default: weak)")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->check(CLI::IsMember({"weak", "strong"}))
      ->group(kWhat);
  app.add_option("--speedup", settings.speedups,
                 "none, fused, graph, for every stage (default: none)")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "fused", "graph"}))
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--bucket-mib", settings.bucket_mib,
                 "sizes of the buckets, for stages that communicate (default: 25)")
      ->delimiter(',')
      ->transform(positive("--bucket-mib", kMaxBucketMib))
      ->check(CLI::Range(1e-6, kMaxBucketMib))
      ->type_name("MIB,...")
      ->group(kWhat);
  app.add_option("--gradient-compression", settings.gradient_compressions,
                 "none, bf16, fp16, for stages that communicate (default: none)")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "bf16", "fp16"}))
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--shard-optimizer", settings.shard_optimizer,
                 "no, yes, for stages that communicate (default: no)")
      ->delimiter(',')
      ->check(CLI::IsMember({"no", "yes"}))
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--peers", settings.peers,
                 "others on the same work: pytorch (installed when first asked for), c10d (the "
                 "engine of PyTorch's DDP under the same C++ loop)")
      ->delimiter(',')
      ->check(CLI::IsMember({"pytorch", "c10d"}))
      ->type_name("NAME,...")
      ->group(kWhat);
  app.add_option("--nodes", settings.nodes, "of the allocation, for srun (default: 1)")
      ->transform(integer("--nodes", 1, 65536))
      ->type_name("N")
      ->group(kWhat);
  app.add_option("--device", settings.device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->type_name("NAME")
      ->group(kWhat);
  app.add_option("--seed", settings.seed, "weights, data and order (default: 42)")
      ->transform(integer<std::uint64_t>("--seed", 0, std::numeric_limits<std::uint64_t>::max()))
      ->type_name("N")
      ->group(kWhat);

  constexpr const char* kHow = "How it is measured";
  std::int64_t steps = 0;
  CLI::Option* const steps_option =
      app.add_option("--steps", steps,
                     "timed steps per run, at least (default: chosen from --budget)")
          ->transform(integer<std::int64_t>("--steps", 1, 10'000'000))
          ->type_name("N")
          ->group(kHow);
  CLI::Option* const repetitions_option =
      app.add_option("--repetitions", settings.repetitions,
                     "runs of each configuration (default: 5, with --quick 1)")
          ->transform(integer("--repetitions", 1, kMaxRepetitions))
          ->type_name("N")
          ->group(kHow);
  CLI::Option* const budget_option =
      app.add_option(
             "--budget", settings.budget_s,
             "seconds that the number of steps is chosen for (default: 180, with --quick 30)")
          ->transform(positive("--budget", kMaxSeconds))
          ->type_name("SECONDS")
          ->group(kHow);
  app.add_option("--timeout", settings.timeout_s, "for one run of a stage (default: 120)")
      ->transform(positive("--timeout", kMaxSeconds))
      ->type_name("SECONDS")
      ->group(kHow);
  app.add_flag("--quick", settings.quick,
               "one repetition, the largest world size only, no controls")
      ->group(kHow);
  app.add_flag("--micro", settings.micro,
               "also the pieces alone: all-reduce at more sizes, scatter and gather, data loader, "
               "optimizer, snapshot")
      ->group(kHow);

  constexpr const char* kOutput = "Output";
  CLI::Option* const json_option =
      app.add_option("--json", settings.json_file,
                     "the whole report as one JSON document, to standard output without FILE")
          ->expected(0, 1)
          ->type_name("[FILE]")
          ->group(kOutput);
  app.add_option("--html", settings.html_file, "the report with plots, one page of its own")
      ->check([](const std::string& file) {
        return std::string(file.empty() || file[0] == '-' ? "expected a FILE" : "");
      })
      ->type_name("FILE")
      ->group(kOutput);
  app.add_flag("--dry-run", settings.dry_run, "print the commands, run nothing")->group(kOutput);

  // For tests: hidden from --help.
  app.add_option("--stage-dir", settings.stage_dir)->group("");
  app.add_option("--peers-dir", settings.peers_dir)->group("");

  try {
    std::reverse(own_arguments.begin(), own_arguments.end());  // CLI11 takes them from the back
    app.parse(own_arguments);
  } catch (const CLI::Success& help_or_version) {
    const int code = app.exit(help_or_version);
    flush_standard_output();
    std::exit(code);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (steps_option->count() > 0) {
    settings.steps = steps;
  }
  if (settings.quick) {
    settings.repetitions = repetitions_option->count() > 0 ? settings.repetitions : 1;
    settings.budget_s = budget_option->count() > 0 ? settings.budget_s : 30;
  }
  read_benchmark_flags(settings);
  settings.json = settings.format_json || json_option->count() > 0;
  drop_repeated(settings.stages);
  drop_repeated(settings.launchers);
  drop_repeated(settings.backends);
  drop_repeated(settings.peers);
  drop_repeated(settings.scaling);
  drop_repeated(settings.speedups);
  drop_repeated(settings.bucket_mib);
  drop_repeated(settings.gradient_compressions);
  drop_repeated(settings.shard_optimizer);
  for (const std::string& backend : settings.backends) {
    const std::vector<std::string> known = {"gloo", "hierarchical", "mpi", "nccl", "shm"};
    if (std::find(known.begin(), known.end(), backend) == known.end()) {
      throw UsageError("--backends: expected gloo, hierarchical, mpi, shm or nccl, got \"" +
                       backend + "\"");
    }
  }
  const bool srun_only = settings.launchers == std::vector<std::string>{"srun"};
  if (settings.nodes > 1 && !srun_only) {
    throw UsageError("--nodes " + std::to_string(settings.nodes) +
                     ": only srun starts ranks on several nodes, expected --launchers srun");
  }
  const std::string unmeasured = settings.dry_run     ? "--dry-run"
                                 : settings.list_only ? "--benchmark_list_tests"
                                                      : "";
  const bool document = json_option->count() > 0 || (settings.format_json && settings.dry_run);
  for (const auto& [option, given] :
       {std::pair("--json", document), std::pair("--html", !settings.html_file.empty())}) {
    if (given && !unmeasured.empty()) {
      throw UsageError(std::string(option) + ": nothing is measured with " + unmeasured +
                       ", expected one of the two");
    }
  }
  if (!settings.json_file.empty()) {
    check_output_file("--json", settings.json_file);
  }
  if (!settings.html_file.empty()) {
    check_output_file("--html", settings.html_file);
    if (!settings.json_file.empty() &&
        std::filesystem::absolute(settings.html_file).lexically_normal() ==
            std::filesystem::absolute(settings.json_file).lexically_normal()) {
      throw UsageError("--html: expected another file than --json, got \"" + settings.html_file +
                       "\"");
    }
  }
  return settings;
}

}  // namespace ddp::bench
