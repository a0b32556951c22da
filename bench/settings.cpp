#include "bench/settings.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "bench/launchers.hpp"
#include "common/backends/traits.hpp"
#include "common/base/command_line.hpp"
#include "common/device/hardware.hpp"

namespace ddp::bench {
namespace {

constexpr const char* kDescription =
    "Runs the stages at several world sizes, checks that they train alike at first, measures them\n"
    "in interleaved blocks, and compares their speed.";

constexpr const char* kFooter =
    "Google Benchmark's flags --benchmark_filter, _list_tests, _repetitions, _format=json, _out\n"
    "and _out_format=json work too. Its compare.py compares two reports:\n"
    "  compare.py benchmarks before.json after.json\n"
    "Exit codes: 0 done, 1 a run failed or was interrupted, 2 usage.";

constexpr const char* kStandardOutput = "-";  // as a file's name

/// Adds a list of names, without duplicates. A later list replaces an earlier list.
/// @param choices allowed names; empty: all
void add_names(OptionGroup& group, const char* name, std::vector<std::string>& target,
               const Choices& choices, const std::string& help) {
  const auto store = [&target, choices](const std::string& option, const std::string& text) {
    target.clear();
    for (const std::string& part : split(text)) {
      if (!choices.empty()) {
        check_choice(option, part, choices);
      }
      if (!contains(target, part)) {
        target.push_back(part);
      }
    }
  };
  group.add(name, {"NAMES", "", "", store, OptionValue::kLastCounts}, help);
}

/// Adds an ascending list of numbers. A later list replaces an earlier list.
void add_numbers(OptionGroup& group, const char* name, std::vector<int>& target, int most,
                 const char* help) {
  const auto store = [&target, most](const std::string& option, const std::string& text) {
    std::set<int> numbers;
    for (const std::string& part : split(text)) {
      numbers.insert(parse_integer<int>(option, part, 1, most));
    }
    target.assign(numbers.begin(), numbers.end());
  };
  group.add(name, {"N,N", "", "", store, OptionValue::kLastCounts}, help);
}

void add_what_is_compared(OptionGroup group, Settings& settings) {
  const std::vector<std::string> kMeasured = {kShm, kGloo, kMpi, kNccl};
  std::vector<std::string> known_launchers, models, shapes;
  std::ranges::transform(starters(), std::back_inserter(known_launchers), &Starter::name);
  for (const Model& model : known_models()) {
    models.push_back(model.name);
    shapes.push_back(
        fmt::format("{} {} b{}", model.name, fmt::join(model.layers, "-"), model.batch));
  }
  add_names(group, "--stages", settings.stages, {},
            "programs, or numbers of stages: 03 is stage 03 without\n"
            "fused and compiled. 01 always takes part");
  add_numbers(group, "--world-sizes", settings.world_sizes, 4096,
              "ranks, or replicas in stage 02 (default: powers of two up\n"
              "to all cores, at most 4, or to all GPUs)");
  add_names(group, "--backends", settings.backends, kMeasured,
            fmt::format("{} (default: {} and some {} on CPUs,\n{} on GPUs)",
                        fmt::join(kMeasured, ", "), kShm, kGloo, kNccl));
  add_names(group, "--launchers", settings.launchers, known_launchers,
            fmt::format("{} (default: all that are installed)", fmt::join(known_launchers, ", ")));
  add_names(group, "--models", settings.models, models,
            fmt::format("{},\n{} (default: {}; with --full all)",
                        fmt::join(shapes.begin(), shapes.end() - 1, ", "), shapes.back(),
                        kDefaultModels));
  add_names(group, "--scaling", settings.scaling, {"weak", "strong"},
            "weak: the model's batch per rank; strong: the same global\n"
            "batch at all world sizes (default: weak)");
  std::vector<std::string> peers;
  for (const PlanRow& row : known_rows()) {
    if (row.is_peer() && !contains(peers, row.stage)) {
      peers.push_back(row.stage);
    }
  }
  add_names(group, "--peers", settings.peers, peers,
            fmt::format("{} (installed at first use)", fmt::join(peers, ", ")));
  const auto add_program = [&settings](const std::string& name, const std::string& command) {
    if (command.find_first_not_of(" \t\n") == std::string::npos) {
      refuse("{}: got {}, expected a command", name, quote(command));
    }
    settings.programs.push_back(command);
  };
  group.add("--program", {"COMMAND", "", "", add_program, OptionValue::kEach},
            "a program of yours, in quotes, instead of the stages, or\n"
            "beside those that --stages, --models or --peers name. Each\n"
            "further program is another --program. A shell runs it in this\n"
            "folder; {ranks} becomes the world size. See\n"
            "docs/guides/measure.md");
  add_numbers(group, "--nodes", settings.nodes, 65536,
              "nodes for srun; ranks per node: the largest --world-sizes");
  group.add("--device", takes::choice(settings.device, kDevices), "device of the ranks");
  group.add("--seed", takes::integer(settings.seed, std::uint64_t{0}, UINT64_MAX),
            "seed of weights, data and the order of runs");
  group.add("--benchmark-filter", takes::text(settings.filter, "REGEX"),
            "only runs with matching names, and stage 01");
}

void add_how_it_is_measured(OptionGroup group, Settings& settings) {
  group.add("--steps",
            takes::integer(settings.steps, std::int64_t{1}, std::int64_t{10'000'000})
                .initially("by model"),
            "number of timed steps of each run");
  group.add("--repetitions,--benchmark-repetitions",
            takes::integer(settings.repetitions, 1, 1000).initially("6"),
            "runs of each command; with --quick 1, with --full 15");
  group.add("--quick", takes::flag(settings.quick), "one launch of each, compared with nothing");
  group.add("--full", takes::flag(settings.full),
            "all models, launchers and variants, 15 repetitions\n"
            "(a quarter of an hour)");
  group.add("--timeout", takes::positive(settings.timeout_s, "SECONDS", 1e7),
            "time limit of a run");
}

void add_output(OptionGroup group, Settings& settings) {
  // Repeatable, because the user's files replace the files from bench/run.sh.
  const auto store_json = [&settings](const std::string& name, const std::string& file) {
    settings.json_on_stdout = file == kStandardOutput;
    settings.json_file = settings.json_on_stdout ? "" : parse_path(name, file);
  };
  group.add("--json,--benchmark-out",
            {"[FILE]", "", "", store_json, OptionValue::kLastCounts, kStandardOutput},
            "write the report as JSON, to standard output without FILE");
  group.add("--html", takes::path(settings.html_file, "FILE").repeatable(),
            "write the report as a page with plots");
  const auto add_report = [&settings](const std::string& name, const std::string& file) {
    settings.beside.push_back(parse_path(name, file));
  };
  group.add("--beside", {"FILE...", "", "", add_report, OptionValue::kSeveral},
            "show the speed-ups of other reports, such as those in results/");
  group.add("--no-samples", takes::flag(settings.no_samples),
            "leave single steps out of the JSON document");
  group.add("--dry-run", takes::flag(settings.dry_run),
            "print the plan and its commands, run nothing");
}

void add_hidden(OptionGroup group, Settings& settings) {
  const auto store_format = [&settings](const std::string& name, const std::string& format) {
    settings.json_on_stdout |= check_choice(name, format, {"console", "json"}) == "json";
  };
  const auto only_json = [](const std::string& name, const std::string& format) {
    check_choice(name, format, {"json"});
  };
  group.add("--benchmark-list-tests", takes::flag(settings.list_only), "");
  group.add("--benchmark-format", {"NAME", "", "", store_format}, "");
  group.add("--benchmark-out-format", {"NAME", "", "", only_json}, "");
  group.add("--stage-dir", takes::text(settings.stage_dir, "FOLDER").initially(""), "");
  group.add("--peers-dir", takes::text(settings.peers_dir, "FOLDER").initially(""), "");
}

void check_together(const Settings& settings) {
  check_output_file("--json", settings.json_file);
  check_output_file("--html", settings.html_file);
  expect_different_files("--json, --html", {settings.json_file, settings.html_file});
  if (settings.quick && settings.full) {
    refuse("--full: got --quick too, expected one of them");
  }
  if (!settings.programs.empty() && settings.scaling.size() > 1) {
    refuse("--scaling: got {}, expected one beside --program, whose command decides",
           fmt::join(settings.scaling, ","));
  }
  if (!settings.programs.empty() && settings.nodes.back() > 1) {
    refuse("--nodes: got {}, expected 1 beside --program, whose ranks write one file here",
           fmt::join(settings.nodes, ","));
  }
  const std::string& over_nodes = std::ranges::find(starters(), true, &Starter::spans_nodes)->name;
  if (settings.nodes.back() > 1 && settings.launchers != std::vector{over_nodes}) {
    refuse("--nodes: got {}, expected --launchers {} beside it", fmt::join(settings.nodes, ","),
           over_nodes);
  }
}

}  // namespace

Settings parse_settings(int argc, const char* const* argv) {
  Settings settings;
  settings.stage_dir = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  settings.peers_dir = DDP_PEERS_DIR;
  settings.arguments.assign(argv + 1, argv + argc);
  CommandLine line("bench", kDescription,
                   fmt::format("bench " DDP_VERSION ", schema version {}", kSchemaVersion), kFooter,
                   32);
  add_what_is_compared(line.group("Runs to compare"), settings);
  add_how_it_is_measured(line.group("Measurement"), settings);
  add_output(line.group("Output"), settings);
  add_hidden(line.group(""), settings);
  line.parse(settings.arguments);
  check_together(settings);
  return settings;
}

}  // namespace ddp::bench
