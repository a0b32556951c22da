#include "bench/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <ranges>
#include <regex>
#include <tuple>

#include "bench/command.hpp"
#include "bench/google_benchmark.hpp"
#include "bench/machine.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/launch/device_count.hpp"

namespace ddp::bench {
namespace {

/// At most, with --full: torchrun takes seconds to start, torch.compile tens of seconds.
constexpr int kRepetitionsOfSlowStarts = 6;

enum Ranks { kOne, kThreads, kLargest, kAll };  // kThreads: one rank with as many threads
enum Models { kEach, kHeaviest };  // kHeaviest: the one with the most arithmetic in a step
/// kOnce: another line runs the same step, so this one only shows that it works.
enum Times { kRepeated, kOnce, kWithFull, kOnceWithFull };

struct Line {
  const char* program;
  const char* launcher;  ///< "": all that are there
  const char* backend;  ///< "": the device's first
  Ranks ranks;
  Models models;
  Times times;
};

/// What runs when no stage, launcher or backend is named.
// clang-format off
constexpr Line kDefaultPlan[] = {
  {kBaseline,                     "none",   "none", kOne,     kEach,     kRepeated},
  {kBaseline,                     "none",   "none", kThreads, kHeaviest, kRepeated},
  {"02_data_parallel",            "none",   "none", kLargest, kHeaviest, kRepeated},
  {"02_data_parallel_mirrored",   "none",   "none", kLargest, kHeaviest, kWithFull},
  {"03_ddp_spawn",                "spawn",  "",     kAll,     kEach,     kRepeated},
  {"03_ddp_spawn",                "spawn",  "gloo", kLargest, kHeaviest, kRepeated},
  {"03_ddp_spawn_by_hand",        "spawn",  "",     kLargest, kHeaviest, kWithFull},
  {kFused,                        "spawn",  "",     kLargest, kHeaviest, kWithFull},
  {"04_ddp_launcher",             "",       "",     kLargest, kHeaviest, kOnce},
  {"04_ddp_launcher_accelerated", "mpirun", "",     kLargest, kHeaviest, kOnceWithFull},
  {"05_multinode",                "mpirun", "",     kLargest, kHeaviest, kOnce},
};
// clang-format on

class Planner {
 public:
  explicit Planner(Settings settings) { plan_.settings = std::move(settings); }

  Plan make() {
    choose_device();
    choose_models();
    find_launchers(plan_);
    choose_world_sizes();
    for (const Model& model : models_) {
      for (const std::string& scaling : settings_.scaling) {
        model_ = &model;
        scaling_ = scaling;
        settings_.by_name() ? add_named_stages() : add_default_stages();
        add_peers();
      }
    }
    check_named();
    apply_filter();
    if (settings_.most_repetitions() > 1) {
      add_controls();
      add_runs_without_communication();
    } else {
      plan_.not_run.push_back({"equal commands, runs without communication, intervals",
                               "they take more than one repetition"});
    }
    return std::move(plan_);
  }

 private:
  void choose_device() {
    settings_.stage_dir = std::filesystem::absolute(settings_.stage_dir).lexically_normal();
    if (!has_program(kBaseline)) {
      throw UsageError(fmt::format("--stage-dir: got {}, expected a folder with {}",
                                   settings_.stage_dir, kBaseline));
    }
    if (settings_.device == "auto") {
      settings_.device = count_cuda_devices() > 0 ? "cuda" : "cpu";
    } else if (settings_.device == "cuda" && count_cuda_devices() == 0) {
      throw UsageError("--device cuda: " + why_no_cuda_device());
    }
  }

  void choose_models() {
    std::vector<std::string> names = settings_.models;
    if (names.empty()) {
      names = settings_.full ? std::vector<std::string>{"T", "S", "M", "L"}
                             : std::vector<std::string>{"T", "M"};
    }
    std::ranges::transform(names, std::back_inserter(models_), find_model);
    const auto work = [](const Model& model) {
      return model.flop_per_sample() * static_cast<double>(model.batch);
    };
    heaviest_model_ = std::ranges::max_element(models_, {}, work)->name;
  }

  void choose_world_sizes() {
    const bool cuda = settings_.device == "cuda";
    const int units = cuda ? count_cuda_devices() : count_processors(allowed_cores());
    world_sizes_ = settings_.world_sizes;
    if (world_sizes_.empty()) {
      const int most = cuda || settings_.full ? units : std::min(units, 4);
      for (int size = 1; size < most; size *= 2) {
        world_sizes_.push_back(size);
      }
      world_sizes_.push_back(most);
    }
    for (const int size : world_sizes_) {
      if (size > units * settings_.nodes.front()) {
        plan_.notes.push_back(fmt::format("{} ranks take turns: this machine has {} {}", size,
                                          units, cuda ? "GPUs" : "cores"));
      }
    }
    for (const int ranks : numbers_of_ranks()) {
      if (settings_.global_batch && *settings_.global_batch % ranks != 0) {
        throw UsageError(fmt::format("--global-batch: got {}, expected a multiple of {} ranks",
                                     *settings_.global_batch, ranks));
      }
    }
  }

  /// The world sizes, and what srun makes of the largest on several nodes.
  std::vector<int> numbers_of_ranks() const {
    std::vector<int> numbers = world_sizes_;
    for (const int nodes : settings_.nodes) {
      numbers.push_back(largest() * (plan_.launchers.contains("srun") ? nodes : 1));
    }
    return numbers;
  }

  int largest() const { return world_sizes_.back(); }
  bool has_program(const std::string& name) const {
    return is_executable(settings_.stage_dir + "/" + name);
  }
  bool has_program(const Program& program) const { return has_program(program.executable); }

  void skip(const std::string& what, const std::string& reason) {
    const auto is_it = [&](const NotRun& other) { return other.what == what; };
    if (std::ranges::none_of(plan_.not_run, is_it)) {
      plan_.not_run.push_back({what, reason});
    }
  }

  std::string default_backend() const {
    return settings_.device == "cuda" ? "nccl" : settings_.nodes.back() > 1 ? "gloo" : "shm";
  }

  /// A global batch that every number of ranks divides.
  std::int64_t common_batch() const {
    std::int64_t multiple = 1;
    for (const int ranks : numbers_of_ranks()) {
      multiple = std::lcm<std::int64_t>(multiple, ranks);
    }
    return settings_.global_batch.value_or(model_->batch * multiple);
  }

  Entry make_entry(const std::string& stage, const std::string& variant, Start start,
                   const std::string& launcher, const std::string& backend) const {
    Entry entry;
    entry.model = *model_;
    entry.start = start;
    entry.parity_batch = common_batch();
    entry.repetitions = settings_.most_repetitions();
    entry.run.stage = stage;
    entry.run.variant = variant;
    entry.run.launcher = launcher;
    entry.run.backend = backend;
    entry.run.device = settings_.device;
    entry.run.model = model_->name;
    entry.run.layers = model_->layers;
    entry.run.scaling = scaling_;
    return entry;
  }

  /// @param size ranks, or replicas; with one of one process its threads
  void add(Entry entry, int size, bool all_threads = false) {
    Run& run = entry.run;
    run.world_size = all_threads ? 1 : size;
    run.threads = all_threads ? size : 1;
    run.global_batch = scaling_ == "strong" ? common_batch() : model_->batch * size;
    run.parameters = model_->parameters();
    run.lines_of_code = lines_of_code(run, settings_.peers_dir);
    run.name = fmt::format("{}/{}/{}", run.model, scaling_, entry.program);
    run.name += entry.role == Role::kPeer ? "_" + run.variant : "";
    for (const std::string& part : {run.launcher, run.backend}) {
      run.name += part == "none" ? "" : "/" + part;
    }
    run.name += run.nodes == 1 ? "" : fmt::format("/nodes:{}", run.nodes);
    run.name += run.threads == 1 ? "" : fmt::format("/threads:{}", run.threads);
    run.name += fmt::format("/ranks:{}", run.world_size);
    const auto is_it = [&](const Entry& other) { return other.run.name == run.name; };
    if (std::ranges::none_of(plan_.entries, is_it)) {
      plan_.entries.push_back(std::move(entry));
    }
  }

  void add_program(const Program& program, const std::string& launcher, const std::string& backend,
                   const std::vector<int>& sizes, bool all_threads, int repetitions) {
    Entry entry = make_entry(program.stage, program.variant, program.start, launcher, backend);
    entry.program = program.name;
    entry.repetitions = repetitions;
    for (const int size : sizes) {
      add(entry, size, all_threads);
    }
    if (launcher == "srun") {
      for (const int nodes : settings_.nodes) {
        entry.run.nodes = nodes;
        add(entry, largest() * nodes);
      }
    }
  }

  /// Of the launchers by name, those that start this program and are there.
  std::vector<std::string> launchers_of(const Program& program) const {
    if (program.start == Start::kAlone || program.start == Start::kReplicas) {
      return {"none"};
    }
    std::vector<std::string> launchers;
    for (const std::string name : {"spawn", "torchrun", "mpirun", "srun"}) {
      if ((name == "spawn") == (program.start == Start::kSpawn) && plan_.launchers.contains(name)) {
        launchers.push_back(name);
      }
    }
    return launchers;
  }

  void add_default_stages() {
    const bool cpu = settings_.device == "cpu";
    const bool is_heaviest =
        settings_.full || !settings_.models.empty() || model_->name == heaviest_model_;
    for (const Line& line : kDefaultPlan) {
      const Program& program = find_program(line.program);
      const bool with_full = line.times == kWithFull || line.times == kOnceWithFull;
      const bool needs_cpus = line.ranks == kThreads || line.backend == std::string("gloo");
      if ((with_full && !settings_.full) || (line.models == kHeaviest && !is_heaviest) ||
          (needs_cpus && (!cpu || largest() == 1))) {
        continue;
      }
      if (!has_program(program)) {
        skip(program.name, "it is not built");
        continue;
      }
      std::vector<std::string> launchers = launchers_of(program);
      if (contains(launchers, line.launcher)) {
        launchers = {line.launcher};
      }
      std::vector<int> sizes = {line.ranks == kOne ? 1 : largest()};
      if (line.ranks == kAll && !settings_.quick) {
        sizes = world_sizes_;
      }
      const std::string backend = *line.backend != '\0' ? line.backend : default_backend();
      const bool once = line.times == kOnce || line.times == kOnceWithFull;
      const int repetitions = once && !settings_.full ? 1 : settings_.most_repetitions();
      for (const std::string& launcher : launchers) {
        add_program(
            program, launcher, backend, sizes, line.ranks == kThreads,
            launcher == "torchrun" ? std::min(repetitions, kRepetitionsOfSlowStarts) : repetitions);
      }
    }
  }

  bool is_named(const Program& program) const {
    return contains(settings_.stages, program.name) ||
           (program.name != kFused &&
            (settings_.stages.empty() || contains(settings_.stages, program.name.substr(0, 2))));
  }

  /// Everything that the options admit.
  void add_named_stages() {
    for (const Program& program : known_programs()) {
      const bool is_baseline = program.name == kBaseline;
      const bool on_these_nodes = settings_.nodes.back() == 1 || program.name == "05_multinode";
      if (!is_baseline && !(is_named(program) && on_these_nodes && has_program(program))) {
        continue;
      }
      for (const std::string& launcher : launchers_of(program)) {
        std::vector<std::string> backends = {"none"};
        if (launcher != "none") {
          backends = settings_.backends.empty() ? std::vector<std::string>{default_backend()}
                                                : settings_.backends;
        }
        for (const std::string& backend : backends) {
          if (backend != "mpi" || launcher == "mpirun") {  // who starts the processes of MPI's jobs
            add_program(program, launcher, backend, is_baseline ? std::vector{1} : world_sizes_,
                        false, settings_.most_repetitions());
          }
        }
      }
      if (is_baseline && settings_.device == "cpu" && largest() > 1) {
        add_program(program, "none", "none", {largest()}, true, settings_.most_repetitions());
      }
    }
  }

  void add_peers() {
    const bool cpu = settings_.device == "cpu";
    const std::string own_backend = cpu ? "gloo" : "nccl";
    for (const Peer& peer : known_peers()) {
      const bool too_slow = peer.slow_start && !settings_.full && model_->name != heaviest_model_;
      if (!contains(settings_.peers, peer.name) || too_slow) {
        continue;
      }
      if (!cpu && !peer.on_gpus) {
        skip(peer.name, "it takes part on CPUs only");
        continue;
      }
      if (peer.built_here && !has_program("peer_" + peer.name)) {
        skip(peer.name, "it is not built");
        continue;
      }
      if (!peer.built_here) {
        plan_.pythons[peer.name] = "python3";  // until it is looked for
      }
      const bool one_process = peer.start == Start::kReplicas;
      Entry entry = make_entry(peer.name, peer.variant, peer.start, one_process ? "none" : "spawn",
                               one_process ? "none" : own_backend);
      entry.role = Role::kPeer;
      entry.run.kind = "peer";
      entry.program = peer.name;
      if (peer.slow_start) {
        entry.repetitions = std::min(entry.repetitions, kRepetitionsOfSlowStarts);
      }
      if (peer.several && largest() > 1) {
        add(entry, largest());
      }
      if (peer.built_here && largest() > 1) {
        entry.run.backend = default_backend();
        add(entry, largest());
      }
      // On GPUs a process has one of them.
      if (peer.one_process && (cpu || largest() == 1) &&
          (!peer.slow_start || settings_.full || largest() == 1)) {
        entry.run.launcher = "none";
        entry.run.backend = "none";
        add(entry, largest(), true);
      }
    }
    if (plan_.pythons.empty() || !cpu || !has_program("03_ddp_spawn")) {
      return;
    }
    const int repetitions = settings_.most_repetitions();
    // A framework over Gloo is compared with ours over Gloo too, and JAX's compiled step with ours
    // that has no autograd.
    if (largest() > 1) {
      add_program(find_program("03_ddp_spawn"), "spawn", "gloo", {largest()}, false, repetitions);
    }
    if (plan_.pythons.contains("jax")) {
      add_program(find_program(kFused), "spawn", "shm", {largest()}, false, repetitions);
    }
  }

  void check_named() const {
    for (const std::string& name : settings_.stages) {
      const auto is_it = [&](const Program& program) {
        return name == program.name || name == program.name.substr(0, 2);
      };
      if (std::ranges::none_of(known_programs(), is_it)) {
        throw UsageError(fmt::format(
            "--stages: got \"{}\", expected programs such as 03_ddp_spawn, or 01 to 05", name));
      }
      if (std::ranges::none_of(plan_.entries, [&](const Entry& entry) {
            return name == entry.program || name == entry.program.substr(0, 2);
          })) {
        throw UsageError(
            fmt::format("--stages {}: it is not built, or none of the launchers ({}) starts it",
                        name, fmt::join(std::views::keys(plan_.launchers), ", ")));
      }
    }
    for (const std::string& backend : settings_.backends) {
      if (std::ranges::none_of(plan_.entries,
                               [&](const Entry& entry) { return entry.run.backend == backend; })) {
        throw UsageError(
            fmt::format("--backends {}: no stage uses it, expected stages with several ranks{}",
                        backend, backend == "mpi" ? " under mpirun" : ""));
      }
    }
  }

  void apply_filter() {
    if (settings_.filter.empty() || settings_.filter == "all") {
      return;
    }
    const bool negative = settings_.filter[0] == '-';
    std::regex regex;
    try {
      regex.assign(settings_.filter.substr(negative ? 1 : 0), std::regex::extended);
    } catch (const std::regex_error&) {
      throw UsageError(fmt::format("--benchmark_filter: got \"{}\", expected a regular expression",
                                   settings_.filter));
    }
    std::erase_if(plan_.entries, [&](const Entry& entry) {
      return !entry.run.is_baseline() &&
             std::regex_search(entry.run.name + kBenchmarkSuffix, regex) == negative;
    });
  }

  void repeat(const Entry& original, Role role, const char* suffix) {
    Entry entry = original;
    entry.role = role;
    entry.original = original.run.name;
    entry.run.kind = "control";
    entry.run.name += suffix;
    plan_.entries.push_back(std::move(entry));
  }

  /// Stage 01 and one run of several ranks, of each model and scaling, once more.
  void add_controls() {
    const std::vector<Entry> originals = plan_.entries;
    for (const Entry& entry : originals) {
      if (entry.run.is_baseline()) {
        repeat(entry, Role::kControl, "/control");
      }
    }
    for (const Model& model : models_) {
      for (const std::string& scaling : settings_.scaling) {
        const Entry* chosen = nullptr;
        for (const Entry& entry : originals) {
          const bool candidate = entry.role == Role::kStage && entry.processes() > 1 &&
                                 entry.repetitions > 1 && entry.run.model == model.name &&
                                 entry.run.scaling == scaling;
          if (candidate && (chosen == nullptr || entry.processes() > chosen->processes())) {
            chosen = &entry;
          }
        }
        if (chosen != nullptr) {
          repeat(*chosen, Role::kControl, "/control");
        }
      }
    }
  }

  void add_runs_without_communication() {
    const std::vector<Entry> originals = plan_.entries;
    for (const Entry& entry : originals) {
      const bool is_there = std::ranges::any_of(plan_.entries, [&](const Entry& other) {
        return other.role == Role::kNoCommunication && compute_the_same(other.run, entry.run);
      });
      if (entry.role == Role::kStage && entry.processes() > 1 && !is_there &&
          entry.repetitions == settings_.most_repetitions() && entry.run.variant == "main") {
        repeat(entry, Role::kNoCommunication, "/no_communication");
      }
    }
  }

  Plan plan_;
  Settings& settings_ = plan_.settings;
  std::vector<Model> models_;
  std::string heaviest_model_;
  std::vector<int> world_sizes_;  ///< ascending
  // What is being added.
  const Model* model_ = nullptr;
  std::string scaling_;
};

/// Seen from the folder that bench was started in, if it lies there.
std::string from_here(const std::string& path) {
  const std::string here = std::filesystem::current_path().string() + "/";
  return path.starts_with(here) ? path.substr(here.size()) : path;
}

/// As a shell takes it. A peer's Python is what install.sh prints.
std::string shown_command(const Entry& entry, const Plan& plan) {
  std::vector<std::string> argv =
      command_line(entry, plan, timed_length(entry, plan.settings), "FOLDER");
  std::string python;
  if (plan.pythons.contains(entry.program)) {
    argv.erase(argv.begin());
    python = fmt::format("$({}/install.sh {}) ", from_here(plan.settings.peers_dir), entry.program);
  }
  std::ranges::transform(argv, argv.begin(), from_here);
  return python + shell_line(argv);
}

}  // namespace

std::string role_name(Role role) {
  switch (role) {
    case Role::kPeer:
      return "peer";
    case Role::kControl:
      return "control";
    case Role::kNoCommunication:
      return "no comm";
    default:
      return "stage";
  }
}

bool compute_the_same(const Run& a, const Run& b) {
  const auto what = [](const Run& run) {
    return std::tie(run.stage, run.variant, run.model, run.scaling, run.nodes, run.world_size);
  };
  return what(a) == what(b);
}

Plan make_plan(Settings settings) {
  return Planner(std::move(settings)).make();
}

void list_benchmarks(std::ostream& out, const Plan& plan) {
  for (const Entry& entry : plan.entries) {
    if (entry.role != Role::kNoCommunication) {
      out << entry.run.name << kBenchmarkSuffix << '\n';
    }
  }
}

void print_plan(std::ostream& out, const Plan& plan) {
  constexpr const char* kRow = "{:<7} {:<28} {:<8} {:<7} {:>5} {:>7} {:<7} {:>6} {:>4}  {}\n";
  out << fmt::format(kRow, "role", "program", "launcher", "backend", "ranks", "threads", "scaling",
                     "batch", "reps", "model");
  for (const Entry& entry : plan.entries) {
    const Run& run = entry.run;
    const std::string program =
        entry.program + (entry.role == Role::kPeer ? " " + run.variant : "");
    out << fmt::format(kRow, role_name(entry.role), program, run.launcher, run.backend,
                       run.world_size, run.threads, run.scaling, run.global_batch,
                       entry.repetitions, run.model);
  }
  out << "\nThe commands as they are timed. Each also runs once before, all with the same global "
         "batch, to\ncompare weights. FOLDER is one that bench makes, empty before each run.\n\n";
  for (const Entry& entry : plan.entries) {
    out << fmt::format("{}: {}\n", entry.run.name, shown_command(entry, plan));
  }
  out << '\n';
  for (const std::string& note : plan.notes) {
    out << fmt::format("Note: {}\n", note);
  }
  for (const NotRun& not_run : plan.not_run) {
    out << fmt::format("Not run: {} ({})\n", not_run.what, not_run.reason);
  }
}

}  // namespace ddp::bench
