#include "bench/plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <ostream>
#include <ranges>
#include <regex>
#include <tuple>

#include "bench/command.hpp"
#include "bench/machine.hpp"
#include "bench/report.hpp"
#include "common/base/parse.hpp"
#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/hardware.hpp"

namespace ddp::bench {
namespace {

/// Upper limit with --full: torchrun takes seconds to start, torch.compile tens of seconds.
constexpr int kRepetitionsOfSlowStarts = 6;

enum Ranks { kOne, kThreads, kLargest, kAll };  // kThreads: one rank with as many threads
enum Models { kEach, kHeaviest };  // kHeaviest: the model with the most arithmetic in a step
/// kOnce: another line times the same step, so this line only shows that the program works.
enum Times { kRepeated, kOnce, kWithFull, kOnceWithFull };

struct Line {
  const char* program;
  const char* launcher;  ///< "": every installed launcher
  const char* backend;  ///< "": the device's default
  Ranks ranks;
  Models models;
  Times times;
};

/// Plan if no stage, launcher or backend is named.
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
        std::ranges::for_each(known_peers(), [this](const Peer& peer) { add_peer(peer); });
        add_stages_beside_peers();
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
      refuse("--stage-dir: got {}, expected a folder with {}", settings_.stage_dir, kBaseline);
    }
    const int devices = settings_.device == "cpu" ? 0 : count_cuda_devices();
    if (settings_.device == "cuda" && devices == 0) {
      refuse("--device cuda: {}", why_no_cuda_device());
    }
    settings_.device = devices > 0 ? "cuda" : "cpu";
    units_ = devices > 0 ? devices : count_cores();
  }

  bool on_cpu() const { return settings_.device == "cpu"; }

  void choose_models() {
    std::vector<std::string> names = settings_.models;
    if (names.empty()) {
      names = split(settings_.full ? "T,S,M,L" : "T,M");
    }
    std::ranges::transform(names, std::back_inserter(models_), find_model);
    const auto work = [](const Model& model) {
      return model.flop_per_sample() * static_cast<double>(model.batch);
    };
    heaviest_model_ = std::ranges::max_element(models_, {}, work)->name;
  }

  void choose_world_sizes() {
    world_sizes_ = settings_.world_sizes;
    if (world_sizes_.empty()) {
      const int most = !on_cpu() || settings_.full ? units_ : std::min(units_, 4);
      for (int size = 1; size < most; size *= 2) {
        world_sizes_.push_back(size);
      }
      world_sizes_.push_back(most);
    }
    for (const int size : world_sizes_) {
      if (size > units_ * settings_.nodes.front()) {
        plan_.notes.push_back(fmt::format("{} ranks take turns: this machine has {} {}", size,
                                          units_, on_cpu() ? "cores" : "GPUs"));
      }
    }
  }

  int largest() const { return world_sizes_.back(); }

  bool has_program(const std::string& name) const {
    return is_executable(settings_.stage_dir + "/" + name);
  }

  void skip(const std::string& what, const std::string& reason) {
    if (std::ranges::find(plan_.not_run, what, &NotRun::what) == plan_.not_run.end()) {
      plan_.not_run.push_back({what, reason});
    }
  }

  std::string default_backend() const {
    return !on_cpu() ? "nccl" : settings_.nodes.back() > 1 ? "gloo" : "shm";
  }

  /// Global batch that every number of ranks divides, under srun on several nodes too.
  std::int64_t common_batch() const {
    std::int64_t multiple = 1;
    for (const int size : world_sizes_) {
      multiple = std::lcm<std::int64_t>(multiple, size);
    }
    for (const int nodes : settings_.nodes) {
      multiple = std::lcm<std::int64_t>(multiple, largest() * nodes);
    }
    return model_->batch * multiple;
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
    entry.run.parameters = model_->parameters();
    entry.run.scaling = scaling_;
    return entry;
  }

  /// @param size number of ranks or replicas, or with `all_threads` of threads of a single process
  void add(Entry entry, int size, bool all_threads = false) {
    Run& run = entry.run;
    run.world_size = all_threads ? 1 : size;
    run.threads = all_threads ? size : 1;
    run.global_batch = scaling_ == "strong" ? common_batch() : model_->batch * size;
    run.lines_of_code = lines_of_code(run, settings_.peers_dir);
    run.name = fmt::format("{}/{}/{}", run.model, scaling_, entry.program);
    run.name += entry.run.kind == "peer" ? "_" + run.variant : "";
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

  /// Adds a program's runs under a launcher over a backend.
  void add_program(const Program& program, const std::string& launcher, const std::string& backend,
                   const std::vector<int>& sizes, int repetitions, bool all_threads = false) {
    Entry entry = make_entry(program.stage, program.variant, program.start, launcher, backend);
    entry.program = program.name;
    entry.repetitions = repetitions;
    for (const int size : sizes) {
      add(entry, size, all_threads);
    }
    for (const int nodes : launcher == "srun" ? settings_.nodes : std::vector<int>()) {
      entry.run.nodes = nodes;
      add(entry, largest() * nodes);
    }
  }

  /// Installed launchers that can start this program.
  std::vector<std::string> launchers_of(const Program& program) const {
    if (program.start == Start::kAlone || program.start == Start::kReplicas) {
      return {"none"};
    }
    std::vector<std::string> launchers =
        split(program.start == Start::kSpawn ? "spawn" : "torchrun,mpirun,srun");
    std::erase_if(launchers, [this](const auto& name) { return !plan_.launchers.contains(name); });
    return launchers;
  }

  void add_default_stages() {
    const bool is_heaviest =
        settings_.full || !settings_.models.empty() || model_->name == heaviest_model_;
    for (const Line& line : kDefaultPlan) {
      const Program& program = find_program(line.program);
      const bool with_full = line.times == kWithFull || line.times == kOnceWithFull;
      const bool needs_cpus = line.ranks == kThreads || line.backend == std::string("gloo");
      if ((with_full && !settings_.full) || (line.models == kHeaviest && !is_heaviest) ||
          (needs_cpus && (!on_cpu() || largest() == 1))) {
        continue;
      }
      if (!has_program(program.name)) {
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
        const bool is_slow = launcher == "torchrun";
        add_program(program, launcher, backend, sizes,
                    is_slow ? std::min(repetitions, kRepetitionsOfSlowStarts) : repetitions,
                    line.ranks == kThreads);
      }
    }
  }

  bool is_named(const Program& program) const {
    const auto names_it = [&](const std::string& word) { return program.is_named(word); };
    return contains(settings_.stages, program.name) ||
           (program.name != kFused &&
            (settings_.stages.empty() || std::ranges::any_of(settings_.stages, names_it)));
  }

  /// Adds all runs that fit the options.
  void add_named_stages() {
    const int repetitions = settings_.most_repetitions();
    const Program& baseline = find_program(kBaseline);
    add_program(baseline, "none", "none", {1}, repetitions);
    if (on_cpu() && largest() > 1) {
      add_program(baseline, "none", "none", {largest()}, repetitions, /*all_threads=*/true);
    }
    for (const Program& program : known_programs()) {
      const bool on_these_nodes = settings_.nodes.back() == 1 || program.name == "05_multinode";
      if (program.name == kBaseline || !is_named(program) || !on_these_nodes ||
          !has_program(program.name)) {
        continue;
      }
      for (const std::string& launcher : launchers_of(program)) {
        std::vector<std::string> backends = settings_.backends;
        if (launcher == "none" || backends.empty()) {
          backends = {launcher == "none" ? "none" : default_backend()};
        }
        for (const std::string& backend : backends) {
          if (backend != "mpi" || launcher == "mpirun") {  // mpirun starts the processes of MPI
            add_program(program, launcher, backend, world_sizes_, repetitions);
          }
        }
      }
    }
  }

  /// True if the peer takes part; else adds the reason to the report, if the user asked for it.
  bool takes_part(const Peer& peer) {
    const bool alone = peer.start == Start::kAlone;
    const bool too_slow = peer.slow_start && !settings_.full &&
                          (model_->name != heaviest_model_ || (alone && largest() > 1));
    if (!contains(settings_.peers, peer.name) || too_slow || (!alone && largest() == 1)) {
      return false;
    }
    if (!on_cpu() && !peer.on_gpus) {
      skip(peer.name, "it takes part on CPUs only");
      return false;
    }
    if (peer.name == kBuiltPeer && !has_program("peer_" + peer.name)) {
      skip(peer.name, "it is not built");
      return false;
    }
    return on_cpu() || !alone || largest() == 1;  // a process has one GPU
  }

  void add_peer(const Peer& peer) {
    if (!takes_part(peer)) {
      return;
    }
    if (peer.name != kBuiltPeer) {
      plan_.pythons[peer.name] = "python3";  // until install_peers() finds it
    }
    std::string backend = on_cpu() ? "gloo" : "nccl";
    if (peer.start != Start::kSpawn) {
      backend = "none";
    } else if (peer.backend == "auto") {
      backend = default_backend();
    }
    Entry entry = make_entry(peer.name, peer.variant, peer.start,
                             peer.start == Start::kSpawn ? "spawn" : "none", backend);
    entry.run.kind = "peer";
    entry.program = peer.name;
    if (peer.slow_start) {
      entry.repetitions = std::min(entry.repetitions, kRepetitionsOfSlowStarts);
    }
    add(entry, largest(), peer.start == Start::kAlone);
  }

  /// Adds stage 03 over Gloo for comparison with frameworks over Gloo, and the step without
  /// autograd for comparison with JAX's compiled step.
  void add_stages_beside_peers() {
    const int repetitions = settings_.most_repetitions();
    if (plan_.pythons.empty() || !on_cpu()) {
      return;
    }
    if (largest() > 1 && has_program("03_ddp_spawn")) {
      add_program(find_program("03_ddp_spawn"), "spawn", "gloo", {largest()}, repetitions);
    }
    if (plan_.pythons.contains("jax") && has_program(kFused)) {
      add_program(find_program(kFused), "spawn", "shm", {largest()}, repetitions);
    }
  }

  void check_named() const {
    for (const std::string& name : settings_.stages) {
      const auto is_it = [&](const Program& program) { return program.is_named(name); };
      if (std::ranges::none_of(known_programs(), is_it)) {
        refuse("--stages: got {}, expected programs such as 03_ddp_spawn, or 01 to 05",
               quote(name));
      }
      if (std::ranges::none_of(plan_.entries, [&](const Entry& entry) {
            return entry.run.kind == "stage" && is_it(find_program(entry.program));
          })) {
        refuse("--stages {}: it is not built, or none of the launchers ({}) starts it", name,
               fmt::join(std::views::keys(plan_.launchers), ", "));
      }
    }
    for (const std::string& backend : settings_.backends) {
      const auto uses_it = [&](const Entry& entry) { return entry.run.backend == backend; };
      if (std::ranges::none_of(plan_.entries, uses_it)) {
        refuse("--backends {}: no stage uses it, expected stages with several ranks{}", backend,
               backend == "mpi" ? " under mpirun" : "");
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
      refuse("--benchmark_filter: got {}, expected a regular expression", quote(settings_.filter));
    }
    std::erase_if(plan_.entries, [&](const Entry& entry) {
      return !entry.run.is_baseline() &&
             std::regex_search(entry.run.name + kBenchmarkSuffix, regex) == negative;
    });
  }

  void repeat(const Entry& original, const char* kind, const char* suffix) {
    Entry entry = original;
    entry.original = original.run.name;
    entry.run.kind = kind;
    entry.run.name += suffix;
    plan_.entries.push_back(std::move(entry));
  }

  /// Adds a second run of stage 01 and of the stage with the most ranks, per model and scaling.
  void add_controls() {
    std::map<std::pair<std::string, std::string>, Entry> most_ranks;  // by model and scaling
    for (const Entry& entry : std::vector<Entry>(plan_.entries)) {
      if (entry.run.is_baseline()) {
        repeat(entry, "control", "/control");
      } else if (entry.run.kind == "stage" && entry.processes() > 1 && entry.repetitions > 1) {
        Entry& most =
            most_ranks.try_emplace({entry.run.model, entry.run.scaling}, entry).first->second;
        most = entry.processes() > most.processes() ? entry : most;
      }
    }
    for (const auto& [work, entry] : most_ranks) {
      repeat(entry, "control", "/control");
    }
  }

  /// Adds runs without communication for stages that are repeated and use DistributedDataParallel,
  /// and for the fused stage; not for by_hand.
  void add_runs_without_communication() {
    for (const Entry& entry : std::vector<Entry>(plan_.entries)) {
      const bool is_there = std::ranges::any_of(plan_.entries, [&](const Entry& other) {
        return other.run.kind == kNoCommunication && compute_the_same(other.run, entry.run);
      });
      if (entry.run.kind == "stage" && entry.processes() > 1 && !is_there &&
          entry.repetitions == settings_.most_repetitions() && entry.run.variant != "by_hand") {
        repeat(entry, kNoCommunication, "/no_communication");
      }
    }
  }

  Plan plan_;
  Settings& settings_ = plan_.settings;
  std::vector<Model> models_;
  std::string heaviest_model_;
  int units_ = 1;  ///< GPUs, or cores
  std::vector<int> world_sizes_;  ///< ascending
  // Model and scaling of the runs that are being added.
  const Model* model_ = nullptr;
  std::string scaling_;
};

/// Path relative to the current folder, if it lies there.
std::string from_here(const std::string& path) {
  const std::string here = std::filesystem::current_path().string() + "/";
  return path.starts_with(here) ? path.substr(here.size()) : path;
}

/// Command for a shell. For a peer's Python it calls install.sh.
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
    if (entry.run.kind != kNoCommunication) {
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
    const std::string program = entry.program + (entry.run.kind == "peer" ? " " + run.variant : "");
    out << fmt::format(kRow, run.kind, program, run.launcher, run.backend, run.world_size,
                       run.threads, run.scaling, run.global_batch, entry.repetitions, run.model);
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
