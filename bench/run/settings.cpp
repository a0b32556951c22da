#include "bench/run/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>

#include "bench/report/output_file.hpp"
#include "bench/report/record.hpp"
#include "common/base/command_line.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDescription =
    "Runs the stages of this suite at several world sizes, checks that they train to the same\n"
    "weights, measures them interleaved, and says which is how fast and why.";

constexpr double kMinBucketMib = 1e-6;
constexpr double kMaxBucketMib = 1048576;
constexpr double kMaxSeconds = 1e7;

constexpr const char* kFooter =
    "bench compare A.json B.json finds what became slower between two reports; bench html\n"
    "REPORT.json [PAGE.html] makes the page of one; bench predict --layers N,N,... --batch N says\n"
    "what a step costs before anything is run. Each has a --help of its own.\n"
    "Google Benchmark's own flags (--benchmark_filter=REGEX, --benchmark_out=FILE, ...) work too.\n"
    "Exit codes: 0 done, 1 a configuration failed or the run was interrupted, 2 usage.";

/// Parses each text of a list. Named twice is as good as once: two runs of one name would be no
/// report that others can read.
template <typename T, typename Parse>
StoreValues each_once(std::vector<T>& target, Parse parse) {
  return [&target, parse](const std::string& name, const std::vector<std::string>& texts) {
    target.clear();
    for (const std::string& text : texts) {
      const T value = parse(name, text);
      if (!contains(target, value)) {
        target.push_back(value);
      }
    }
  };
}

std::string as_given(const std::string&, const std::string& text) {
  return text;
}

/// "{weak,strong}"
std::string in_braces(const Choices& choices) {
  return fmt::format("{{{}}}", fmt::join(choices, ","));
}

const std::string& one_of(const Choices& choices, const std::string& name,
                          const std::string& text) {
  if (!contains(choices, text)) {
    throw UsageError(fmt::format("{}: {} not in {}", name, text, in_braces(choices)));
  }
  return text;
}

void add_choices(OptionGroup& group, const std::string& name, std::vector<std::string>& target,
                 const Choices& choices, const std::string& help) {
  group.list(name, "NAME,...:" + in_braces(choices), help,
             each_once(target, [choices](const std::string& option, const std::string& text) {
               return one_of(choices, option, text);
             }));
}

double parse_bucket_mib(const std::string& name, const std::string& text) {
  const double mib = parse_positive(name, text, kMaxBucketMib);
  if (mib < kMinBucketMib) {
    throw UsageError(fmt::format("{}: Value {} not in range {:f} to {:f}", name, text,
                                 kMinBucketMib, kMaxBucketMib));
  }
  return mib;
}

void add_what(OptionGroup group, Settings& settings) {
  group.list("--stages", "NAME,...",
             "programs, or numbers: 03 is all of stage 03; 01 is always the baseline (default: "
             "01 and 03, and 02 on one model, are timed, all others only checked)",
             each_once(settings.stages, as_given));
  group.list("--world-sizes", "N,...",
             "processes, or replicas in stage 02 (default: 1,2,4,... up to all cores or GPUs)",
             each_once(settings.world_sizes, [](const std::string& name, const std::string& text) {
               return parse_integer(name, text, 1, 4096);
             }));
  add_choices(group, "--launchers", settings.launchers, {"spawn", "torchrun", "mpirun", "srun"},
              "spawn, torchrun, mpirun, srun (default: all that are there)");
  group.list("--backends", "NAME,...",
             "shm, gloo, mpi (under mpirun only), hierarchical, nccl (default: shm on CPUs of one "
             "host, hierarchical on several with several ranks each, else gloo; nccl on GPUs)",
             each_once(settings.backends, as_given));
  group.list(
      "--models", "NAME,...",
      "T 20-1 b32, S 64-128-128-10 b32, M 784-512-512-10 b64, L 1024x4 b64, digits, or "
      "widths and batch of your own, 64-256-256-10@32 (default: T,digits,M; with --full L too)",
      each_once(settings.models, as_given));
  add_choices(group, "--scaling", settings.scaling, {"weak", "strong"},
              "weak: the model's batch per rank; strong: that times the largest world size, over "
              "all ranks (default: weak)");
  group.integer("--global-batch", settings.global_batch, std::int64_t{1},
                std::int64_t{1'000'000'000}, "", "that batch over all ranks, in strong scaling");
  add_choices(group, "--speedup", settings.speedups, {"none", "fused", "graph"},
              "none, fused, graph, for every stage (default: none)");
  group.list("--bucket-mib", "MIB,...:FLOAT in [1e-06 - 1.04858e+06]",
             "sizes of the buckets, for stages that communicate (default: 25)",
             each_once(settings.bucket_mib, parse_bucket_mib));
  add_choices(group, "--gradient-compression", settings.gradient_compressions,
              {"none", "bf16", "fp16"},
              "none, bf16, fp16, for stages that communicate (default: none)");
  add_choices(group, "--shard-optimizer", settings.shard_optimizer, {"no", "yes"},
              "no, yes, for stages that communicate (default: no)");
  add_choices(
      group, "--peers", settings.peers,
      {"pytorch", "accelerate", "fabric", "tensorflow", "c10d", "libtorch"},
      "others on the same work: pytorch, accelerate, fabric, tensorflow (installed when "
      "first asked for), c10d (the engine of PyTorch's DDP under the same C++ loop), "
      "libtorch (its data_parallel, on GPUs) (default: pytorch, one setting on one model, if "
      "it is installed)");
  group.list("--nodes", "N,...",
             "of the allocation, for srun; --world-sizes are those of the smallest number, and on "
             "more nodes each has as many ranks as there at most (default: 1)",
             each_once(settings.nodes, [](const std::string& name, const std::string& text) {
               return parse_integer(name, text, 1, 65536);
             }));
  group.value("--network", "ALPHA_US,GBPS", "",
              "predict 8 to 1024 ranks on a network of that many us a message and 1e9 bytes/s a "
              "link (default: only if --nodes measures one)",
              [&settings](const std::string& name, const std::string& text) {
                settings.network = parse_network(name, text);
              });
  const Choices devices = {"auto", "cpu", "cuda"};
  group.value("--device", "NAME:" + in_braces(devices), "", join(devices),
              [&settings, devices](const std::string& name, const std::string& text) {
                settings.device = one_of(devices, name, text);
              });
  group.integer("--seed", settings.seed, std::uint64_t{0},
                std::numeric_limits<std::uint64_t>::max(), "",
                "weights, data and order (default: 42)");
}

void add_how(OptionGroup group, Settings& settings) {
  group.integer("--steps", settings.steps, std::int64_t{1}, std::int64_t{10'000'000}, "",
                "timed steps per run, at least (default: chosen from --budget)");
  group.integer("--repetitions", settings.repetitions, 1, kMaxRepetitions, "",
                "runs of each configuration (default: 9, with --quick 1, with --full 15; at most 6 "
                "of peers, under torchrun and, without --stages, of all but 01 and 03_ddp_spawn)");
  group.positive("--budget", "SECONDS", settings.budget_s, kMaxSeconds, "",
                 "that repetitions and steps are chosen for (default: 150, with --quick 45, with "
                 "--full 900)");
  group.positive("--timeout", "SECONDS", settings.timeout_s, kMaxSeconds, "",
                 "for one run of a stage (default: 120)");
  const Option quick = group.flag("--quick", settings.quick,
                                  "one repetition, the largest world size only, no controls");
  group
      .flag("--full", settings.full,
            "15 minutes: model L too, all launchers, from which batch and width on several ranks "
            "win, time to accuracy")
      .excludes(quick);
  group.text("--data-dir", "PATH", settings.data_dir, "where it is installed",
             "folder of fashion-mnist, for --full");
  group.flag("--micro", settings.micro,
             "also the pieces alone: all-reduce at more sizes, scatter and gather, data loader, "
             "optimizer, snapshot");
}

void add_output(OptionGroup group, Settings& settings) {
  group
      .text("--json", "[FILE]", settings.json_file, "",
            "the whole report as one JSON document, to standard output without FILE")
      .value_optional();
  group.value("--html", "FILE", "", "the report with plots, one page of its own",
              [&settings](const std::string& name, const std::string& text) {
                if (text.empty() || text[0] == '-') {
                  throw UsageError(name + ": expected a FILE");
                }
                settings.html_file = text;
              });
  group.flag("--no-samples", settings.no_samples,
             "leave the single steps out of the document, which are most of it");
  group.flag("--dry-run", settings.dry_run, "print the commands, run nothing");
  // For tests.
  group.text("--stage-dir", "", settings.stage_dir, "", "").hidden();
  group.text("--peers-dir", "", settings.peers_dir, "", "").hidden();
  group.integer("--quiet-wait", settings.quiet_wait_s, 0, 3600, "", "").hidden();
}

/// What the options say together. @param json_given --json
void check_together(const Settings& settings, bool json_given) {
  for (const std::string& backend : settings.backends) {
    const Choices known = {"gloo", "hierarchical", "mpi", "shm", "nccl"};
    if (!contains(known, backend)) {
      throw UsageError(fmt::format("--backends: expected {}, got \"{}\"", join(known), backend));
    }
  }
  if (settings.nodes.back() > 1 && settings.launchers != std::vector<std::string>{"srun"}) {
    throw UsageError(fmt::format(
        "--nodes {}: only srun starts ranks on several nodes, expected --launchers srun",
        fmt::join(settings.nodes, ",")));
  }
  if (settings.global_batch && !contains(settings.scaling, "strong")) {
    throw UsageError(fmt::format(
        "--global-batch {}: in weak scaling it follows from the ranks, expected --scaling strong",
        *settings.global_batch));
  }
  if (settings.dry_run || settings.list_only) {
    const bool document = json_given || (settings.format_json && settings.dry_run);
    if (document || !settings.html_file.empty()) {
      throw UsageError(fmt::format("{}: nothing is measured with {}, expected one of the two",
                                   document ? "--json" : "--html",
                                   settings.dry_run ? "--dry-run" : "--benchmark_list_tests"));
    }
  }
  if (!settings.json_file.empty()) {
    check_output_file("--json", settings.json_file);
  }
  if (!settings.html_file.empty()) {
    check_output_file("--html", settings.html_file);
    if (!settings.json_file.empty() && fs::absolute(settings.html_file).lexically_normal() ==
                                           fs::absolute(settings.json_file).lexically_normal()) {
      throw UsageError(
          fmt::format("--html: expected another file than --json, got \"{}\"", settings.html_file));
    }
  }
}

}  // namespace

Settings parse_settings(int argc, const char* const* argv) {
  Settings settings;
  settings.stage_dir = fs::read_symlink("/proc/self/exe").parent_path().string();
  settings.peers_dir = DDP_PEERS_DIR;
  settings.arguments.assign(argv + 1, argv + argc);
  BenchmarkArguments arguments = split_arguments(argc, argv);

  CommandLine line("bench", kDescription,
                   fmt::format("bench " DDP_VERSION ", report schema {}", kSchemaVersion), kFooter,
                   34);
  add_what(line.group("What is compared"), settings);
  add_how(line.group("How it is measured"), settings);
  add_output(line.group("Output"), settings);
  try {
    line.parse(std::move(arguments.own), "");
  } catch (const Answered&) {
    flush_standard_output();
    std::exit(0);
  }
  if (!line.given("--budget")) {
    settings.budget_s = settings.quick ? 45 : settings.full ? 900 : settings.budget_s;
  }
  std::ranges::sort(settings.nodes);
  read_benchmark_flags(arguments.benchmark_flags, settings);
  const bool json_given = line.given("--json");
  settings.json_on_stdout = settings.format_json || (json_given && settings.json_file.empty());
  check_together(settings, json_given);
  return settings;
}

}  // namespace ddp::bench
