#include "bench/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "bench/record.hpp"
#include "common/base/command_line.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDescription =
    "Runs the stages at several world sizes, checks that they train to the same weights, measures\n"
    "them in interleaved blocks, and prints which is how fast.";

constexpr const char* kFooter =
    "Google Benchmark's flags --benchmark_filter, _list_tests, _repetitions, _format=json, _out "
    "and\n"
    "_out_format=json work too. Its compare.py compares two reports:\n"
    "  compare.py benchmarks before.json after.json\n"
    "Exit codes: 0 done, 1 a run failed or was interrupted, 2 usage.";

/// Without the text that CLI11 appends to every option of --help.
CLI::Validator silent(CLI::Validator validator) {
  return validator.description("");
}

void add_options(CLI::App& app, Settings& settings) {
  const auto names = [&app](const char* name, std::vector<std::string>& target,
                            const std::set<std::string>& choices, const char* help) {
    auto* const option = app.add_option(name, target, help)->delimiter(',')->type_name("NAMES");
    if (!choices.empty()) {
      option->check(silent(CLI::IsMember(choices)));
    }
  };
  const auto numbers = [&app](const char* name, std::vector<int>& target, int most,
                              const char* help) {
    app.add_option(name, target, help)
        ->delimiter(',')
        ->check(silent(CLI::Range(1, most)))
        ->type_name("N,N");
  };
  const auto number = [&app](const char* name, auto& target, double least, double most,
                             const char* help) {
    app.add_option(name, target, help)->check(silent(CLI::Range(least, most)))->type_name("N");
  };

  app.option_defaults()->group("What is compared");
  names("--stages", settings.stages, {},
        "programs, or numbers: 03 is all of stage 03 but 03_ddp_spawn_fused;\n"
        "01 always takes part");
  numbers("--world-sizes", settings.world_sizes, 4096,
          "ranks, or replicas in stage 02 (default: powers of two up\n"
          "to all cores, at most 4, or to all GPUs)");
  names("--backends", settings.backends, {"shm", "gloo", "mpi", "nccl"},
        "shm, gloo, mpi, nccl (default: shm on CPUs, where the plan has\n"
        "gloo too; nccl on GPUs)");
  names("--launchers", settings.launchers, {"spawn", "torchrun", "mpirun", "srun"},
        "spawn, torchrun, mpirun, srun (default: those that are there)");
  names("--models", settings.models, {},
        "T 20-1 b32, S 64-128-128-10 b32, M 784-512-512-10 b64,\n"
        "L 1024-1024-1024-1024 b64, or 64-256-256-10@32\n"
        "(default: T,M; with --full all)");
  names("--scaling", settings.scaling, {"weak", "strong"},
        "weak: the model's batch per rank; strong: the same global\n"
        "batch at all world sizes (default: weak)");
  names("--peers", settings.peers, {"pytorch", "accelerate", "tensorflow", "jax", "c10d"},
        "pytorch, accelerate, tensorflow, jax (installed when first\n"
        "asked for), c10d (PyTorch's engine in our loop)");
  numbers("--nodes", settings.nodes, 65536,
          "of the allocation, for srun: each has as many ranks as\n"
          "the largest of --world-sizes");
  number("--global-batch", settings.global_batch, 1, 1e9, "of strong scaling");
  app.add_option("--device", settings.device, "auto, cpu, cuda")
      ->check(silent(CLI::IsMember({"auto", "cpu", "cuda"})))
      ->type_name("NAME");
  app.add_option("--seed", settings.seed, "of weights, data and the order of runs (default: 42)")
      ->check(silent(CLI::NonNegativeNumber))
      ->type_name("N");
  app.add_option("--benchmark-filter", settings.filter, "runs whose names match, and stage 01")
      ->type_name("REGEX");

  app.option_defaults()->group("How it is measured");
  number("--steps", settings.steps, 1, 1e7, "timed steps of each run (default: by model)");
  number("--repetitions,--benchmark-repetitions", settings.repetitions, 1, 1000,
         "of each run (default: 6, with --quick 1, with --full 15)");
  app.add_flag("--quick", settings.quick, "half a minute: one repetition, no intervals");
  app.add_flag("--full", settings.full,
               "a quarter of an hour: all models, launchers and\n"
               "variants, 15 repetitions");
  number("--timeout", settings.timeout_s, 0.1, 1e7, "seconds for one run (default: 300)");
  number("--quiet-wait", settings.quiet_wait_s, 0, 3600,
         "seconds to wait at most until other programs leave the\n"
         "processors alone (default: 10)");

  app.option_defaults()->group("Output");
  app.add_option("--json,--benchmark-out", settings.json_file,
                 "the report as one JSON document, to standard output\n"
                 "without FILE")
      ->expected(0, 1)
      ->take_last()  // bench/run.sh gives one that the user's replaces
      ->type_name("[FILE]");
  app.add_option("--html", settings.html_file, "the report as one page with plots")
      ->take_last()
      ->type_name("FILE");
  app.add_flag_callback(
      "--no-samples", [&settings] { settings.samples = false; },
      "leave the single steps out of the document");
  app.add_flag("--dry-run", settings.dry_run, "print the plan and its commands, run nothing");

  app.option_defaults()->group("");  // hidden
  app.add_flag("--benchmark-list-tests", settings.list_only);
  app.add_option("--benchmark-format")->check(CLI::IsMember({"console", "json"}));
  app.add_option("--benchmark-out-format")->check(CLI::IsMember({"json"}));
  app.add_option("--stage-dir", settings.stage_dir);
  app.add_option("--peers-dir", settings.peers_dir);
}

/// @throws UsageError unless a file can be made there
void check_output(const char* name, const std::string& file) {
  if (file.empty()) {
    return;
  }
  const fs::path folder = fs::path(file).has_parent_path() ? fs::path(file).parent_path() : ".";
  if (fs::is_directory(file) || access(folder.c_str(), W_OK) != 0) {
    throw UsageError(
        fmt::format("{}: got \"{}\", expected a file that can be written", name, file));
  }
}

void check_together(const Settings& settings) {
  check_output("--json", settings.json_file);
  check_output("--html", settings.html_file);
  if (!settings.json_file.empty() && settings.json_file == settings.html_file) {
    throw UsageError(
        fmt::format("--html: got \"{}\", expected another file than --json", settings.html_file));
  }
  if (settings.quick && settings.full) {
    throw UsageError("--full: got --quick too, expected one of them");
  }
  if (settings.nodes.back() > 1 && settings.launchers != std::vector<std::string>{"srun"}) {
    throw UsageError(fmt::format("--nodes: got {}, expected --launchers srun beside it",
                                 fmt::join(settings.nodes, ",")));
  }
  if (settings.global_batch && !contains(settings.scaling, "strong")) {
    throw UsageError(fmt::format("--global-batch: got {}, expected --scaling strong beside it",
                                 *settings.global_batch));
  }
}

/// Named twice is as good as once.
template <typename T>
void keep_first(std::vector<T>& list) {
  std::vector<T> once;
  for (const T& value : list) {
    if (!contains(once, value)) {
      once.push_back(value);
    }
  }
  list = once;
}

/// One line, with the option that was probably meant.
std::string explain(const CLI::ParseError& error, const CLI::App& app) {
  std::string line = error.what();
  std::replace(line.begin(), line.end(), '\n', ' ');
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || app.remaining().empty()) {
    return line;
  }
  const std::string argument = app.remaining().front();
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      known.push_back("--" + name);
    }
  }
  const std::string meant = nearest(argument.substr(0, argument.find('=')), known);
  return fmt::format("{}: not an option of bench, {}", argument,
                     meant.empty() ? "see --help" : "did you mean " + meant + "?");
}

}  // namespace

Settings parse_settings(int argc, const char* const* argv) {
  Settings settings;
  settings.stage_dir = fs::read_symlink("/proc/self/exe").parent_path().string();
  settings.peers_dir = DDP_PEERS_DIR;
  settings.arguments.assign(argv + 1, argv + argc);

  CLI::App app(kDescription, "bench");
  app.footer(kFooter);
  app.get_formatter()->column_width(32);
  app.set_version_flag("--version",
                       fmt::format("bench " DDP_VERSION ", schema version {}", kSchemaVersion));
  add_options(app, settings);
  std::vector<std::string> arguments;  // CLI11 takes them from the back
  for (auto argument = settings.arguments.rbegin(); argument != settings.arguments.rend();
       ++argument) {
    arguments.push_back(with_dashes(*argument));
  }
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::exit(app.exit(error));  // --help, --version
    }
    throw UsageError(explain(error, app));
  }
  settings.json_on_stdout = (app.count("--json") > 0 && settings.json_file.empty()) ||
                            (app.count("--benchmark-format") > 0 &&
                             app.get_option("--benchmark-format")->as<std::string>() == "json");
  std::ranges::sort(settings.world_sizes);
  std::ranges::sort(settings.nodes);
  keep_first(settings.world_sizes);
  keep_first(settings.nodes);
  keep_first(settings.stages);
  keep_first(settings.backends);
  keep_first(settings.launchers);
  keep_first(settings.models);
  keep_first(settings.scaling);
  keep_first(settings.peers);
  check_together(settings);
  return settings;
}

}  // namespace ddp::bench
