#include "bench/plan.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <numeric>
#include <ranges>
#include <regex>
#include <tuple>

#include "bench/command.hpp"
#include "bench/launchers.hpp"
#include "bench/machine.hpp"
#include "bench/report.hpp"
#include "common/backends/traits.hpp"
#include "common/device/hardware.hpp"

namespace ddp::bench {
namespace {

/// Upper limit with --full: torchrun takes seconds to start, torch.compile tens of seconds.
constexpr int kRepetitionsOfSlowStarts = 6;

/// Model and scaling that all rows are run with.
struct Work {
  Model model;
  std::string scaling;
  bool is_heaviest = false;  ///< the model with the most arithmetic, or all with --full
  std::vector<int> world_sizes;  ///< ascending
  std::int64_t common_batch = 0;  ///< global batch that every number of ranks divides

  int largest() const { return world_sizes.back(); }
};

bool has_program(const Settings& settings, const std::string& name) {
  return is_executable(settings.stage_dir + "/" + name);
}

/// Replaces "auto". @return the number of GPUs, or of cores
int resolve_device(Settings& settings) {
  settings.stage_dir = std::filesystem::absolute(settings.stage_dir).lexically_normal();
  if (!has_program(settings, kBaseline)) {
    refuse("--stage-dir: got {}, expected a folder with {}", settings.stage_dir, kBaseline);
  }
  const int devices = settings.on_cpu() ? 0 : count_cuda_devices();
  if (settings.device == "cuda" && devices == 0) {
    refuse("--device cuda: {}", why_no_cuda_device());
  }
  settings.device = devices > 0 ? "cuda" : "cpu";
  return devices > 0 ? devices : count_cores();
}

/// The world sizes that the settings name, or else powers of two and the most.
std::vector<int> resolve_world_sizes(const Settings& settings, int units) {
  std::vector<int> sizes = settings.world_sizes;
  if (sizes.empty()) {
    const int most = !settings.on_cpu() || settings.full ? units : std::min(units, 4);
    for (int size = 1; size < most; size *= 2) {
      sizes.push_back(size);
    }
    sizes.push_back(most);
  }
  return sizes;
}

/// Fills what the settings leave open from this machine. @return all models with all scalings
std::vector<Work> resolve(Plan& plan) {
  Settings& settings = plan.settings;
  const int units = resolve_device(settings);
  plan.launchers = find_launchers(settings, plan.not_run);
  const std::vector<int> sizes = resolve_world_sizes(settings, units);
  std::int64_t multiple = 1;
  for (const int size : sizes) {
    multiple = std::lcm<std::int64_t>(multiple, size);
    if (size > units) {
      plan.notes.push_back(fmt::format("{} ranks take turns: this machine has {} {}", size, units,
                                       settings.on_cpu() ? "cores" : "GPUs"));
    }
  }
  for (const int nodes : settings.nodes) {
    multiple = std::lcm<std::int64_t>(multiple, sizes.back() * nodes);
  }
  std::vector<Model> models = known_models();
  if (!settings.full || !settings.models.empty()) {
    models.clear();
    for (const std::string& name :
         settings.models.empty() ? split(kDefaultModels) : settings.models) {
      models.push_back(*std::ranges::find(known_models(), name, &Model::name));
    }
  }
  const auto arithmetic = [](const Model& model) { return model.parameters() * model.batch; };
  const std::string heaviest = std::ranges::max(models, {}, arithmetic).name;
  std::vector<Work> all;
  for (const Model& model : models) {
    for (const std::string& scaling : settings.scaling) {
      all.push_back(
          {model, scaling, settings.full || model.name == heaviest, sizes, model.batch * multiple});
    }
  }
  return all;
}

/// True if the user chose this row by name, and no default counts.
bool by_name(const PlanRow& row, const Settings& settings) {
  return settings.by_name() && row.peers.empty();
}

bool is_wanted(const PlanRow& row, const Work& work, const Settings& settings) {
  const bool has_several = work.largest() > 1;
  if (!settings.with_stages() || (row.sizes == Sizes::kSeveral && !has_several) ||
      (row.sizes == Sizes::kThreads && has_several && !settings.on_cpu())) {  // of one GPU
    return false;
  }
  if (!row.peers.empty()) {
    const bool too_slow = row.times == Times::kSlow && !settings.full &&
                          (!work.is_heaviest || (row.sizes == Sizes::kThreads && has_several));
    return !too_slow && std::ranges::any_of(split(row.peers), [&](const std::string& peer) {
      return contains(settings.peers, peer);
    });
  }
  if (!settings.by_name()) {
    return (row.models == Models::kEach || work.is_heaviest || !settings.models.empty()) &&
           (row.times != Times::kWithFull || settings.full);
  }
  if (row.program() == kBaseline) {
    return true;
  }
  const bool on_these_nodes =
      settings.nodes.back() == 1 || (row.launch == LaunchKind::kLauncher && row.has("nodes"));
  const auto names_it = [&](const std::string& word) { return row.is_named(word); };
  return on_these_nodes &&
         (settings.stages.empty() ? row.has("autograd")
                                  : std::ranges::any_of(settings.stages, names_it));
}

/// How a row's program can be started: by the installed launchers, or only by its own.
std::vector<Starter> starters_of(const PlanRow& row, const Plan& plan) {
  if (row.launch == LaunchKind::kAlone || row.launch == LaunchKind::kReplicas) {
    return {find_starter("none")};
  }
  std::vector<Starter> found = starters();
  std::erase_if(found, [&](const Starter& starter) {
    return starter.starts != row.launch ||
           (row.peers.empty() && !plan.launchers.contains(starter.name));
  });
  const auto own = std::ranges::find(found, row.launcher, &Starter::name);
  return own == found.end() || plan.settings.by_name() ? found : std::vector{*own};
}

std::vector<std::string> backends_of(const PlanRow& row, const Starter& starter,
                                     const Settings& settings) {
  if (starter.starts == LaunchKind::kAlone) {
    return {"none"};
  }
  if (by_name(row, settings) && !settings.backends.empty()) {
    std::vector<std::string> backends = settings.backends;
    std::erase_if(backends, [&](const auto& name) {
      return traits_of(name).needs_mpirun && !starter.has_mpi;
    });
    return backends;
  }
  const bool has_own = !row.backend.empty() && !by_name(row, settings) && settings.on_cpu();
  return {has_own ? row.backend
                  : automatic_backend(!settings.on_cpu(), settings.nodes.back() == 1)};
}

int repetitions_of(const PlanRow& row, const Starter& starter, const Settings& settings) {
  const int most = settings.most_repetitions();
  const bool starts_slowly = row.times == Times::kSlow || starter.is_python;
  return by_name(row, settings)                        ? most
         : row.times == Times::kOnce && !settings.full ? 1
         : starts_slowly                               ? std::min(most, kRepetitionsOfSlowStarts)
                                                       : most;
}

/// "M/weak/03_ddp_spawn/spawn/shm/ranks:2"
std::string name_of(const Run& run, const PlanRow& row) {
  std::string name = fmt::format("{}/{}/{}", run.model, run.scaling, row.program());
  for (const std::string& part : {run.launcher, run.backend}) {
    name += part == "none" ? "" : "/" + part;
  }
  name += run.nodes == 1 ? "" : fmt::format("/nodes:{}", run.nodes);
  name += run.threads == 1 ? "" : fmt::format("/threads:{}", run.threads);
  return name + fmt::format("/ranks:{}", run.world_size);
}

/// Adds a run, unless it is there.
/// @param size number of ranks or replicas, or of threads
void add_run(const PlanRow& row, const Work& work, const Starter& starter,
             const std::string& backend, int nodes, int size, Plan& plan) {
  const bool is_program = !row.command.empty();
  Run run;
  run.kind = is_program ? "program" : row.is_peer() ? "peer" : "stage";
  run.stage = row.stage;
  run.variant = row.variant;
  run.launcher = starter.name;
  run.backend = backend;
  run.device = plan.settings.device;
  run.model = work.model.name;
  run.scaling = work.scaling;
  run.nodes = nodes;
  (row.sizes == Sizes::kThreads ? run.threads : run.world_size) = size;
  if (is_program) {
    run.command = row.command;
    run.threads = environment_number("OMP_NUM_THREADS", 1);
  } else {
    run.layers = work.model.layers;
    run.parameters = work.model.parameters();
    run.global_batch = work.scaling == "strong" ? work.common_batch : work.model.batch * size;
    run.lines_of_code = lines_of_code(run, plan.settings.peers_dir);
  }
  run.name = name_of(run, row);
  const auto is_it = [&](const PlannedRun& other) { return other.run.name == run.name; };
  if (std::ranges::none_of(plan.runs, is_it)) {
    plan.runs.push_back({.run = run,
                         .row = row,
                         .original = "",
                         .model = work.model,
                         .parity_batch = work.common_batch,
                         .repetitions = repetitions_of(row, starter, plan.settings),
                         .named_ranks = size});
  }
}

void expand(const PlanRow& row, const Work& work, Plan& plan) {
  const Settings& settings = plan.settings;
  if (!is_wanted(row, work, settings)) {
    return;
  }
  const bool is_excluded = !row.on_gpus && !settings.on_cpu();
  if (is_excluded || (!row.is_peer() && !has_program(settings, row.program()))) {
    const std::string what = is_excluded ? row.peers : row.program();
    if (std::ranges::find(plan.not_run, what, &NotRun::what) == plan.not_run.end()) {
      plan.not_run.push_back(
          {what, is_excluded ? "it takes part on CPUs only" : "it is not built"});
    }
    return;
  }
  if (row.is_peer()) {
    plan.pythons[row.stage] = "python3";  // until install_peers() finds it
  }
  std::vector<int> sizes = {row.sizes == Sizes::kOne ? 1 : work.largest()};
  if (by_name(row, settings) ? row.launch != LaunchKind::kAlone
                             : row.sizes == Sizes::kAll && !settings.quick) {
    sizes = work.world_sizes;
  }
  for (const Starter& starter : starters_of(row, plan)) {
    for (const std::string& backend : backends_of(row, starter, settings)) {
      for (const int size : sizes) {
        add_run(row, work, starter, backend, 1, size, plan);
      }
      for (const int nodes : starter.spans_nodes ? settings.nodes : std::vector<int>()) {
        add_run(row, work, starter, backend, nodes, work.largest() * nodes, plan);
      }
    }
  }
}

/// "train.py" of "python3 -u 'my/train.py' --lr 0.1": the first word that is no interpreter.
std::string label_of(const std::string& command) {
  static const std::regex word(R"("[^"]*"|'[^']*'|[^ ]+)");
  static const std::regex no_name(R"((.*/)?(python[0-9.]*|sh|bash|env)|-.*|.*=.*|)");
  const std::string begin = command.substr(0, 4096);  // a longer match overflows the stack
  for (std::sregex_iterator at(begin.begin(), begin.end(), word), end; at != end; ++at) {
    std::string text = at->str();
    std::erase_if(text, [](char one) { return one == '"' || one == '\''; });
    if (!std::regex_match(text, no_name)) {
      const std::string name = text.substr(text.rfind('/') + 1);
      return name.empty() ? "program" : printable(name);
    }
  }
  return "program";
}

/// Adds the runs of --program: each launcher at each world size. The first also has one rank.
void add_programs(Work work, Plan& plan) {
  int number = 0;
  for (const std::string& command : plan.settings.programs) {
    const PlanRow row = {.stage = label_of(command),
                         .variant = "main",
                         .launch = LaunchKind::kLauncher,
                         .lacks = {"pieces", "no-communication"},
                         .command = command};
    work.model = {.name = fmt::format("P{}", ++number), .layers = {}};
    std::vector<int> sizes = work.world_sizes;
    sizes.insert(sizes.begin(), 1);  // the reference, which add_run() adds once
    for (const Starter& starter : starters()) {
      if (plan.launchers.contains(starter.name)) {
        for (const int size : sizes) {
          add_run(row, work, starter, "none", 1, size, plan);
        }
        sizes = work.world_sizes;
      }
    }
  }
}

void check_named(const Plan& plan) {
  for (const std::string& name : plan.settings.stages) {
    const auto is_it = [&](const PlanRow& row) { return !row.is_peer() && row.is_named(name); };
    if (std::ranges::none_of(known_rows(), is_it)) {
      refuse("--stages: got {}, expected programs such as 03_ddp_spawn, or 01 to 05", quote(name));
    }
    if (std::ranges::none_of(plan.runs, is_it, &PlannedRun::row)) {
      refuse("--stages {}: it is not built, or none of the launchers ({}) starts it", name,
             fmt::join(std::views::keys(plan.launchers), ", "));
    }
  }
  for (const std::string& backend : plan.settings.backends) {
    const auto uses_it = [&](const PlannedRun& planned) { return planned.run.backend == backend; };
    if (std::ranges::none_of(plan.runs, uses_it)) {
      refuse("--backends {}: no stage uses it, expected several ranks (mpi: under mpirun)",
             backend);
    }
  }
}

void apply_filter(Plan& plan) {
  const std::string& filter = plan.settings.filter;
  if (filter.empty() || filter == "all") {
    return;
  }
  const bool negative = filter[0] == '-';
  std::regex regex;
  try {
    regex.assign(filter.substr(negative ? 1 : 0), std::regex::extended);
  } catch (const std::regex_error&) {
    refuse("--benchmark_filter: got {}, expected a regular expression", quote(filter));
  }
  std::erase_if(plan.runs, [&](const PlannedRun& planned) {
    return !planned.run.is_baseline() &&
           std::regex_search(planned.run.name + kBenchmarkSuffix, regex) == negative;
  });
}

void repeat(PlannedRun planned, const char* kind, const char* suffix, Plan& plan) {
  planned.original = planned.run.name;
  planned.run.kind = kind;
  planned.run.name += suffix;
  plan.runs.push_back(std::move(planned));
}

/// Adds a second run of the baseline and of the run with the most ranks, per model and scaling.
void add_controls(Plan& plan) {
  std::map<std::tuple<bool, std::string, std::string>, PlannedRun> chosen;
  for (const PlannedRun& planned : plan.runs) {
    const bool is_one = planned.run.is_baseline();
    if (is_one ||
        (planned.run.kind != "peer" && planned.processes() > 1 && planned.repetitions > 1)) {
      PlannedRun& most =
          chosen.try_emplace({!is_one, planned.run.model, planned.run.scaling}, planned)
              .first->second;
      most = planned.processes() > most.processes() ? planned : most;
    }
  }
  for (const auto& [what, planned] : chosen) {
    repeat(planned, "control", "/control", plan);
  }
}

/// Adds runs without communication for stages that are repeated, unless the option changes nothing.
void add_runs_without_communication(Plan& plan) {
  for (const PlannedRun& planned : std::vector<PlannedRun>(plan.runs)) {
    const bool is_there = std::ranges::any_of(plan.runs, [&](const PlannedRun& other) {
      return other.run.kind == kNoCommunication && compute_the_same(other.run, planned.run);
    });
    if (planned.run.kind == "stage" && planned.processes() > 1 && !is_there &&
        planned.repetitions == plan.settings.most_repetitions() &&
        planned.row.has("no-communication")) {
      repeat(planned, kNoCommunication, "/no_communication", plan);
    }
  }
}

}  // namespace

bool compute_the_same(const Run& a, const Run& b) {
  const auto what = [](const Run& run) {
    return std::tie(run.stage, run.variant, run.model, run.scaling, run.nodes, run.world_size);
  };
  return what(a) == what(b);
}

Plan make_plan(Settings settings) {
  Plan plan;
  plan.settings = std::move(settings);
  const std::vector<Work> all = resolve(plan);
  add_programs(all.front(), plan);
  for (const Work& work : all) {
    for (const PlanRow& row : known_rows()) {
      expand(row, work, plan);
    }
  }
  check_named(plan);
  apply_filter(plan);
  for (const PlannedRun& planned : plan.runs) {
    launcher_command(planned, plan);  // an allocation may have too few nodes
  }
  if (plan.settings.most_repetitions() > 1) {
    add_controls(plan);
    add_runs_without_communication(plan);
  } else {
    plan.not_run.push_back({"equal commands, runs without communication, intervals",
                            "they take more than one repetition"});
  }
  return plan;
}

}  // namespace ddp::bench
