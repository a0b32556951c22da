#include "bench/plan.hpp"

#include <fmt/ranges.h>

#include <filesystem>
#include <numeric>
#include <ranges>
#include <regex>
#include <tuple>

#include "bench/launchers.hpp"
#include "bench/machine.hpp"
#include "bench/report.hpp"
#include "common/backends/traits.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/parse.hpp"
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

bool is_on_cpu(const Settings& settings) {
  return settings.device == "cpu";
}

bool has_program(const Settings& settings, const std::string& name) {
  return is_executable(settings.stage_dir + "/" + name);
}

/// Replaces "auto". @return the number of GPUs, or of cores
int resolve_device(Settings& settings) {
  settings.stage_dir = std::filesystem::absolute(settings.stage_dir).lexically_normal();
  if (!has_program(settings, kBaseline)) {
    refuse("--stage-dir: got {}, expected a folder with {}", settings.stage_dir, kBaseline);
  }
  const int devices = is_on_cpu(settings) ? 0 : count_cuda_devices();
  if (settings.device == "cuda" && devices == 0) {
    refuse("--device cuda: {}", why_no_cuda_device());
  }
  settings.device = devices > 0 ? "cuda" : "cpu";
  return devices > 0 ? devices : count_cores();
}

std::vector<int> resolve_world_sizes(const Settings& settings, int units) {
  std::vector<int> sizes = settings.world_sizes;
  if (sizes.empty()) {
    const int most = !is_on_cpu(settings) || settings.full ? units : std::min(units, 4);
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
                                       is_on_cpu(settings) ? "cores" : "GPUs"));
    }
  }
  for (const int nodes : settings.nodes) {
    multiple = std::lcm<std::int64_t>(multiple, sizes.back() * nodes);
  }
  std::vector<Model> models;
  std::ranges::transform(
      settings.models.empty() ? split(settings.full ? "T,S,M,L" : "T,M") : settings.models,
      std::back_inserter(models), find_model);
  const std::string heaviest = std::ranges::max_element(models, {}, [](const Model& model) {
                                 return model.parameters() * model.batch;
                               })->name;
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
  if ((row.sizes == Sizes::kSeveral && !has_several) ||
      (row.sizes == Sizes::kThreads && has_several && !is_on_cpu(settings))) {  // of one GPU
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

/// Installed launchers that can start a row's program.
std::vector<std::string> launchers_of(const PlanRow& row, const Plan& plan) {
  if (row.launch == LaunchKind::kAlone || row.launch == LaunchKind::kReplicas) {
    return {"none"};
  }
  std::vector<std::string> names;
  for (const Launcher& launcher : launchers()) {
    if (launcher.starts == row.launch &&
        (!row.peers.empty() || plan.launchers.contains(launcher.name))) {
      names.push_back(launcher.name);
    }
  }
  const bool has_own = !plan.settings.by_name() && contains(names, row.launcher);
  return has_own ? std::vector{row.launcher} : names;
}

std::vector<std::string> backends_of(const PlanRow& row, const Launcher& launcher,
                                     const Settings& settings) {
  if (launcher.starts == LaunchKind::kAlone) {
    return {"none"};
  }
  if (by_name(row, settings) && !settings.backends.empty()) {
    std::vector<std::string> backends = settings.backends;
    std::erase_if(backends, [&](const auto& name) {
      return traits_of(name).needs_mpirun && !launcher.has_mpi;
    });
    return backends;
  }
  const bool has_own = !row.backend.empty() && !by_name(row, settings) && is_on_cpu(settings);
  return {has_own ? row.backend
                  : automatic_backend(!is_on_cpu(settings), settings.nodes.back() == 1)};
}

int repetitions_of(const PlanRow& row, const Launcher& launcher, const Settings& settings) {
  const int most = settings.most_repetitions();
  if (by_name(row, settings)) {
    return most;
  }
  if (row.times == Times::kOnce && !settings.full) {
    return 1;
  }
  const bool starts_slowly = row.times == Times::kSlow || launcher.is_python;
  return starts_slowly ? std::min(most, kRepetitionsOfSlowStarts) : most;
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
void add_run(const PlanRow& row, const Work& work, const Launcher& launcher,
             const std::string& backend, int nodes, int size, Plan& plan) {
  Run run;
  run.kind = row.is_peer() ? "peer" : "stage";
  run.stage = row.stage;
  run.variant = row.variant;
  run.launcher = launcher.name;
  run.backend = backend;
  run.device = plan.settings.device;
  run.model = work.model.name;
  run.layers = work.model.layers;
  run.parameters = work.model.parameters();
  run.scaling = work.scaling;
  run.nodes = nodes;
  (row.sizes == Sizes::kThreads ? run.threads : run.world_size) = size;
  run.global_batch = work.scaling == "strong" ? work.common_batch : work.model.batch * size;
  run.lines_of_code = lines_of_code(run, plan.settings.peers_dir);
  run.name = name_of(run, row);
  const auto is_it = [&](const PlannedRun& other) { return other.run.name == run.name; };
  if (std::ranges::none_of(plan.runs, is_it)) {
    plan.runs.push_back({.run = run,
                         .row = row,
                         .original = "",
                         .model = work.model,
                         .parity_batch = work.common_batch,
                         .repetitions = repetitions_of(row, launcher, plan.settings)});
  }
}

void expand(const PlanRow& row, const Work& work, Plan& plan) {
  const Settings& settings = plan.settings;
  if (!is_wanted(row, work, settings)) {
    return;
  }
  const bool is_excluded = !row.on_gpus && !is_on_cpu(settings);
  if (is_excluded || (!row.is_python && !has_program(settings, row.file()))) {
    const std::string what = is_excluded ? row.peers : row.is_peer() ? row.stage : row.program();
    if (std::ranges::find(plan.not_run, what, &NotRun::what) == plan.not_run.end()) {
      plan.not_run.push_back(
          {what, is_excluded ? "it takes part on CPUs only" : "it is not built"});
    }
    return;
  }
  if (row.is_python) {
    plan.pythons[row.stage] = "python3";  // until install_peers() finds it
  }
  std::vector<int> sizes = {row.sizes == Sizes::kOne ? 1 : work.largest()};
  if (by_name(row, settings) ? row.launch != LaunchKind::kAlone
                             : row.sizes == Sizes::kAll && !settings.quick) {
    sizes = work.world_sizes;
  }
  for (const std::string& name : launchers_of(row, plan)) {
    const Launcher& launcher = find_launcher(name);
    for (const std::string& backend : backends_of(row, launcher, settings)) {
      for (const int size : sizes) {
        add_run(row, work, launcher, backend, 1, size, plan);
      }
      for (const int nodes : launcher.spans_nodes ? settings.nodes : std::vector<int>()) {
        add_run(row, work, launcher, backend, nodes, work.largest() * nodes, plan);
      }
    }
  }
}

void check_named(const Plan& plan) {
  for (const std::string& name : plan.settings.stages) {
    if (std::ranges::none_of(known_rows(), [&](const PlanRow& row) {
          return row.peers.empty() && row.is_named(name);
        })) {
      refuse("--stages: got {}, expected programs such as 03_ddp_spawn, or 01 to 05", quote(name));
    }
    if (std::ranges::none_of(plan.runs, [&](const PlannedRun& planned) {
          return planned.run.kind == "stage" && planned.row.is_named(name);
        })) {
      refuse("--stages {}: it is not built, or none of the launchers ({}) starts it", name,
             fmt::join(std::views::keys(plan.launchers), ", "));
    }
  }
  for (const std::string& backend : plan.settings.backends) {
    if (std::ranges::none_of(
            plan.runs, [&](const PlannedRun& planned) { return planned.run.backend == backend; })) {
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

/// Adds a second run of stage 01 and of the stage with the most ranks, per model and scaling.
void add_controls(Plan& plan) {
  std::map<std::pair<std::string, std::string>, PlannedRun> most_ranks;  // by model and scaling
  for (const PlannedRun& planned : std::vector<PlannedRun>(plan.runs)) {
    if (planned.run.is_baseline()) {
      repeat(planned, "control", "/control", plan);
    } else if (planned.run.kind == "stage" && planned.processes() > 1 && planned.repetitions > 1) {
      PlannedRun& most =
          most_ranks.try_emplace({planned.run.model, planned.run.scaling}, planned).first->second;
      most = planned.processes() > most.processes() ? planned : most;
    }
  }
  for (const auto& [work, planned] : most_ranks) {
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
  for (const Work& work : resolve(plan)) {
    for (const PlanRow& row : known_rows()) {
      expand(row, work, plan);
    }
  }
  check_named(plan);
  apply_filter(plan);
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
