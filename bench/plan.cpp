#include "bench/plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <ranges>
#include <regex>
#include <tuple>

#include "bench/machine.hpp"
#include "bench/report.hpp"
#include "common/base/parse.hpp"
#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/device/hardware.hpp"

namespace ddp::bench {
namespace {

/// Upper limit with --full: torchrun takes seconds to start, torch.compile tens of seconds.
constexpr int kRepetitionsOfSlowStarts = 6;

/// True if `word` is the program's name or the number of its stage. kFused has no number, because
/// its step is another one.
bool is_named(const std::string& program, const std::string& word) {
  return word == program || (program != kFused && word == program.substr(0, 2));
}

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
        std::ranges::for_each(known_rows(), [this](const PlanRow& row) { expand(row); });
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
    const auto work = [](const Model& model) { return model.parameters() * model.batch; };
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
      if (size > units_) {
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

  /// True for a row that the command line asks for.
  bool is_wanted(const PlanRow& row) const {
    const bool has_several = largest() > 1;
    if ((row.sizes == Sizes::kSeveral && !has_several) ||
        (row.sizes == Sizes::kThreads && has_several && !on_cpu())) {  // a process has one GPU
      return false;
    }
    const bool is_heaviest = settings_.full || model_->name == heaviest_model_;
    if (!row.peers.empty()) {
      const bool too_slow = row.times == Times::kSlow && !settings_.full &&
                            (!is_heaviest || (row.sizes == Sizes::kThreads && has_several));
      return !too_slow && std::ranges::any_of(split(row.peers), [this](const std::string& peer) {
        return contains(settings_.peers, peer);
      });
    }
    if (!settings_.by_name()) {
      return (row.models == Models::kEach || is_heaviest || !settings_.models.empty()) &&
             (row.times != Times::kWithFull || settings_.full);
    }
    const std::string program = row.program();
    if (program == kBaseline) {
      return true;
    }
    const bool on_these_nodes = settings_.nodes.back() == 1 || program == "05_multinode";
    const auto names_it = [&](const std::string& word) { return is_named(program, word); };
    return on_these_nodes &&
           (settings_.stages.empty() ? program != kFused
                                     : std::ranges::any_of(settings_.stages, names_it));
  }

  /// True if the user chose this row by name, and no default counts.
  bool by_name(const PlanRow& row) const { return settings_.by_name() && row.peers.empty(); }

  /// Installed launchers that can start a row's program.
  std::vector<std::string> launchers_of(const PlanRow& row) const {
    if (row.start == Start::kAlone || row.start == Start::kReplicas) {
      return {"none"};
    }
    if (!row.peers.empty()) {
      return {"spawn"};
    }
    std::vector<std::string> launchers =
        split(row.start == Start::kSpawn ? "spawn" : "torchrun,mpirun,srun");
    std::erase_if(launchers, [this](const auto& name) { return !plan_.launchers.contains(name); });
    if (!settings_.by_name() && contains(launchers, row.launcher)) {
      return {row.launcher};
    }
    return launchers;
  }

  std::vector<std::string> backends_of(const PlanRow& row, const std::string& launcher) const {
    if (launcher == "none") {
      return {"none"};
    }
    if (by_name(row) && !settings_.backends.empty()) {
      std::vector<std::string> backends = settings_.backends;
      if (launcher != "mpirun") {  // which starts the processes of MPI
        std::erase(backends, "mpi");
      }
      return backends;
    }
    const bool has_own = !row.backend.empty() && !by_name(row) && on_cpu();
    return {has_own ? row.backend : default_backend()};
  }

  /// Adds a row's runs with the current model and scaling.
  void expand(const PlanRow& row) {
    if (!is_wanted(row)) {
      return;
    }
    if (!row.on_gpus && !on_cpu()) {
      skip(row.peers, "it takes part on CPUs only");
      return;
    }
    if (row.is_peer() && row.stage != kBuiltPeer) {
      plan_.pythons[row.stage] = "python3";  // until install_peers() finds it
    } else if (!has_program(row.is_peer() ? "peer_" + row.stage : row.program())) {
      skip(row.is_peer() ? row.stage : row.program(), "it is not built");
      return;
    }
    std::vector<int> sizes = {row.sizes == Sizes::kOne ? 1 : largest()};
    if (by_name(row) ? row.start != Start::kAlone : row.sizes == Sizes::kAll && !settings_.quick) {
      sizes = world_sizes_;
    }
    for (const std::string& launcher : launchers_of(row)) {
      for (const std::string& backend : backends_of(row, launcher)) {
        for (const int size : sizes) {
          add(row, launcher, backend, 1, size);
        }
        for (const int nodes : launcher == "srun" ? settings_.nodes : std::vector<int>()) {
          add(row, launcher, backend, nodes, largest() * nodes);
        }
      }
    }
  }

  int repetitions_of(const PlanRow& row, const std::string& launcher) const {
    const int most = settings_.most_repetitions();
    if (by_name(row)) {
      return most;
    }
    if (row.times == Times::kOnce && !settings_.full) {
      return 1;
    }
    const bool starts_slowly = row.times == Times::kSlow || launcher == "torchrun";
    return starts_slowly ? std::min(most, kRepetitionsOfSlowStarts) : most;
  }

  /// @param size number of ranks or replicas, or of threads
  void add(const PlanRow& row, const std::string& launcher, const std::string& backend, int nodes,
           int size) {
    Entry entry;
    entry.model = *model_;
    entry.start = row.start;
    entry.parity_batch = common_batch();
    entry.repetitions = repetitions_of(row, launcher);
    Run& run = entry.run;
    run.kind = row.is_peer() ? "peer" : "stage";
    run.stage = row.stage;
    run.variant = row.variant;
    run.launcher = launcher;
    run.backend = backend;
    run.device = settings_.device;
    run.model = model_->name;
    run.layers = model_->layers;
    run.parameters = model_->parameters();
    run.scaling = scaling_;
    run.nodes = nodes;
    (row.sizes == Sizes::kThreads ? run.threads : run.world_size) = size;
    run.global_batch = scaling_ == "strong" ? common_batch() : model_->batch * size;
    run.lines_of_code = lines_of_code(run, settings_.peers_dir);
    run.name = fmt::format("{}/{}/{}", run.model, scaling_, row.program());
    for (const std::string& part : {launcher, backend}) {
      run.name += part == "none" ? "" : "/" + part;
    }
    run.name += nodes == 1 ? "" : fmt::format("/nodes:{}", nodes);
    run.name += run.threads == 1 ? "" : fmt::format("/threads:{}", run.threads);
    run.name += fmt::format("/ranks:{}", run.world_size);
    const auto is_it = [&](const Entry& other) { return other.run.name == run.name; };
    if (std::ranges::none_of(plan_.entries, is_it)) {
      plan_.entries.push_back(std::move(entry));
    }
  }

  void check_named() const {
    for (const std::string& name : settings_.stages) {
      const auto is_it = [&](const PlanRow& row) {
        return row.peers.empty() && is_named(row.program(), name);
      };
      if (std::ranges::none_of(known_rows(), is_it)) {
        refuse("--stages: got {}, expected programs such as 03_ddp_spawn, or 01 to 05",
               quote(name));
      }
      if (std::ranges::none_of(plan_.entries, [&](const Entry& entry) {
            return entry.run.kind == "stage" && is_named(entry.run.program(), name);
          })) {
        refuse("--stages {}: it is not built, or none of the launchers ({}) starts it", name,
               fmt::join(std::views::keys(plan_.launchers), ", "));
      }
    }
    for (const std::string& backend : settings_.backends) {
      const auto uses_it = [&](const Entry& entry) { return entry.run.backend == backend; };
      if (std::ranges::none_of(plan_.entries, uses_it)) {
        refuse("--backends {}: no stage uses it, expected several ranks (mpi: under mpirun)",
               backend);
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

}  // namespace ddp::bench
