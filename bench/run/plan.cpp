#include "bench/run/plan.hpp"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <numeric>
#include <regex>

#include "bench/report/analysis.hpp"
#include "bench/run/machine.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"
#include "common/launch/cpu_share.hpp"
#include "common/launch/device_count.hpp"

namespace ddp::bench {
namespace {

/// The setting of PyTorch's DDP that takes part without a word from the user: the fastest one.
constexpr const char* kDefaultPeer = "pytorch";
constexpr const char* kDefaultPeerVariant = "tuned";
/// Between these lies what a process computes in a step: from less than an all-reduce takes to far
/// more.
constexpr const char* kSweep[] = {
    "64-16-16-10@32",  "64-64-64-10@32",   "64-256-256-10@32",  "64-1024-1024-10@32",
    "64-128-128-10@8", "64-128-128-10@32", "64-128-128-10@128", "64-128-128-10@512",
};

/// Whether `stages` has the program's name or its stage's number.
bool is_named(const std::vector<std::string>& stages, const StageProgram& program) {
  return contains(stages, program.name) || contains(stages, program.name.substr(0, 2));
}

class Planner {
 public:
  explicit Planner(Settings settings) {
    std::error_code error;
    const std::string stage_dir = std::filesystem::canonical(settings.stage_dir, error).string();
    if (error) {
      throw UsageError(
          fmt::format("--stage-dir: expected a folder, got \"{}\"", settings.stage_dir));
    }
    settings.stage_dir = stage_dir;
    if (settings.device == "auto") {
      // Decided here, and the stages are told: the report then never names the wrong device.
      const bool built_with_cuda = std::filesystem::exists(
          std::filesystem::path(stage_dir).parent_path() / "lib" / "libddp_cuda.so");
      settings.device = built_with_cuda && count_cuda_devices() > 0 ? "cuda" : "cpu";
      if (const std::string& problem = cuda_driver_problem(); built_with_cuda && !problem.empty()) {
        plan_.notes.push_back("--device auto uses the CPU: " + problem);
      }
    }
    plan_.settings = std::move(settings);
  }

  Plan make() {
    const std::vector<StageProgram> programs = pick_programs();
    const std::vector<Workload> workloads = pick_workloads();
    large_model_ = std::ranges::max_element(workloads, {}, [](const Workload& workload) {
                     return step_flop(workload.layers, static_cast<double>(workload.batch));
                   })->name;
    pick_world_sizes();
    find_launchers(plan_);
    // An empty name: the default, which depends on the world size.
    backends_ = settings_.backends.empty() ? std::vector<std::string>{""} : settings_.backends;
    if (settings_.backends.empty() && settings_.device == "cpu" && on_one_node()) {
      leave_out("gloo", "shm is the default on one host; --backends shm,gloo adds it");
    }
    for (const Workload& workload : workloads) {
      for (const std::string& scaling : settings_.scaling) {
        Configuration work;
        work.workload = workload;
        work.device = settings_.device;
        work.scaling = scaling;
        work.parity_batch = common_batch(workload.batch);
        add_stages(work, programs);
        add_peers(work);
        if (settings_.by_default() && (settings_.full || (is_large(work) && !settings_.quick))) {
          add_threads(work);
          add_default_peer(work);
        }
      }
    }
    if (settings_.by_default() && settings_.full && settings_.models.empty()) {
      add_sweep(programs);
    } else if (settings_.full) {
      leave_out("models of many widths and batches",
                "--models, --stages, --launchers or --backends was given");
    } else if (settings_.by_default()) {
      leave_out("from which batch and width on several ranks win, and time to accuracy",
                "bench --full measures them, in 15 minutes");
    }
    say_what_is_left_out();
    apply_filter();
    if (settings_.quick) {
      leave_out("A/A controls and runs without communication", "--quick");
    } else {
      add_controls();
      add_runs_without_communication();
    }
    return std::move(plan_);
  }

 private:
  void leave_out(const std::string& what, const std::string& why) {
    plan_.not_run.push_back({what, why});
  }

  /// For what is found out again with each workload.
  void leave_out_once(const std::string& what, const std::string& why) {
    if (!contains(plan_.not_run, NotRun{what, why})) {
      leave_out(what, why);
    }
  }

  bool on_one_node() const { return settings_.nodes.back() == 1; }

  template <typename Condition>
  bool any_configuration(Condition condition) const {
    return std::ranges::any_of(plan_.configurations, condition);
  }

  std::vector<StageProgram> pick_programs() {
    for (const std::string& asked : settings_.stages) {
      if (std::ranges::none_of(known_programs(), [&](const StageProgram& program) {
            return is_named({asked}, program);
          })) {
        throw UsageError(
            fmt::format("--stages: expected a program such as 03_ddp_spawn, or a number from 01 "
                        "to 05, got \"{}\"",
                        asked));
      }
    }
    std::vector<StageProgram> programs;
    for (const StageProgram& program : known_programs()) {
      const bool exists = is_executable(plan_.program_path(program.name));
      if (!exists && contains(settings_.stages, program.name)) {
        throw UsageError(fmt::format("--stages {}: not there, expected a program in {}",
                                     program.name, settings_.stage_dir));
      }
      const bool is_baseline = program.name == kBaseline;
      const bool asked = settings_.stages.empty() || is_named(settings_.stages, program);
      const bool on_these_nodes = on_one_node() || program.name == kMultinode;
      if (!is_baseline && !(asked && on_these_nodes)) {
        continue;
      }
      if (exists) {
        programs.push_back(program);
      } else if (is_baseline) {
        throw UsageError(fmt::format(
            "{} is not in {}: everything is compared with it, expected it next to bench", kBaseline,
            settings_.stage_dir));
      } else {
        leave_out(program.name, "not built: no such program in " + settings_.stage_dir);
      }
    }
    return programs;
  }

  std::vector<Workload> pick_workloads() const {
    std::vector<std::string> names = settings_.models;
    if (names.empty()) {
      names = settings_.full ? std::vector<std::string>{"T", "digits", "M", "L"}
                             : std::vector<std::string>{"T", "digits", "M"};
    }
    std::vector<Workload> workloads;
    for (const std::string& name : names) {
      const auto is_it = [&](const Workload& workload) {
        return strcasecmp(workload.name.c_str(), name.c_str()) == 0;
      };
      const auto known = std::ranges::find_if(known_workloads(), is_it);
      const Workload* const found =
          known == known_workloads().end() ? find_workload(name) : &*known;
      if (found == nullptr) {
        throw UsageError(
            fmt::format("--models: expected T, S, M, L, digits, or widths and batch such as "
                        "64-256-256-10@32, got {}",
                        quote(name)));
      }
      if (std::ranges::none_of(workloads, is_it)) {
        workloads.push_back(*found);
      }
    }
    return workloads;
  }

  /// Fills world_sizes_ and nodes_of_.
  void pick_world_sizes() {
    const bool cuda = settings_.device == "cuda";
    const int nodes = settings_.nodes.front();
    const int units = nodes * (cuda ? count_cuda_devices() : count_processors(allowed_cores()));
    const char* const what = cuda ? "GPUs" : "cores";
    if (units == 0) {
      throw UsageError("--device cuda: " + why_no_cuda_device());
    }
    std::vector<int> sizes = settings_.world_sizes;
    if (sizes.empty() && nodes > 1) {
      sizes.push_back(units);
    } else if (sizes.empty()) {
      for (int size = 1; size <= 4 || size < units; size *= 2) {
        if (size <= units) {
          sizes.push_back(size);
        } else {
          leave_out(fmt::format("world size {}", size),
                    fmt::format("this machine has {} {}", units, what));
        }
      }
      if (sizes.back() < units) {
        sizes.push_back(units);  // all of them, be it no power of two
      }
    }
    std::ranges::sort(sizes);
    for (const int size : sizes) {
      if (size % nodes != 0) {
        throw UsageError(
            fmt::format("--world-sizes: got {}, expected a multiple of {}, the number of --nodes",
                        size, nodes));
      }
      nodes_of_[size] = nodes;
    }
    if (sizes.back() > units) {
      plan_.notes.push_back(
          fmt::format("{} ranks share {} {}: more than one rank waits for the same one",
                      sizes.back(), units, what));
    }
    const int per_node = sizes.back() / nodes;
    for (const int more_nodes : settings_.nodes) {
      nodes_of_[more_nodes * per_node] = more_nodes;
    }
    for (const auto& [size, node_count] : nodes_of_) {
      world_sizes_.push_back(size);
      if (settings_.global_batch && *settings_.global_batch % size != 0) {
        throw UsageError(fmt::format(
            "--global-batch {}: expected a multiple of each world size, {} is one of them",
            *settings_.global_batch, size));
      }
    }
  }

  /// The batch over all ranks that every world size divides: the model's times the largest one, if
  /// that will do.
  std::int64_t common_batch(std::int64_t batch) const {
    if (settings_.global_batch) {
      return *settings_.global_batch;
    }
    std::int64_t multiple = 1;
    for (const int size : world_sizes_) {
      multiple = std::lcm<std::int64_t>(multiple, size);
    }
    const std::int64_t largest = batch * world_sizes_.back();
    return largest % multiple == 0 ? largest : batch * multiple;
  }

  /// Between one node's ranks stage 05 makes the step of stage 04, as does the accelerator, so
  /// unless it is asked for by name one run of it stands for all.
  bool is_sampled(const StageProgram& program) const {
    return (program.name == kMultinode || program.variant == "accelerated") &&
           settings_.stages.empty() && on_one_node();
  }

  std::vector<std::string> launchers_of(const StageProgram& program) const {
    if (program.start == Start::kAlone || program.start == Start::kReplicas) {
      return {"none"};
    }
    std::vector<std::string> launchers;
    for (const char* name : {"spawn", "torchrun", "mpirun", "srun"}) {
      const bool is_spawn = name == std::string("spawn");
      if (is_spawn == (program.start == Start::kSpawn) && plan_.launchers.contains(name)) {
        launchers.push_back(name);
      }
    }
    if (is_sampled(program) && launchers.size() > 1) {
      // mpirun starts in the least time, where it is there.
      launchers = {contains(launchers, "mpirun") ? "mpirun" : launchers.front()};
    }
    return launchers;
  }

  /// A start under torchrun takes seconds, so without a word from the user it has one world size.
  bool torchrun_once() const {
    return settings_.launchers.empty() && settings_.world_sizes.empty();
  }

  /// Without a word from the user one model answers what is asked at the side: a launch takes most
  /// of a second.
  bool is_large(const Configuration& work) const { return work.workload.name == large_model_; }

  std::vector<int> world_sizes_of(const Configuration& work, const std::string& launcher) const {
    const StageProgram& program = work.program;
    if (program.start == Start::kAlone) {
      return {1};
    }
    const int largest = world_sizes_.back();
    if (settings_.quick || (settings_.by_default() && program.name != kDistributed)) {
      return {largest};
    }
    if (is_sampled(program)) {
      return {contains(world_sizes_, 2) ? 2 : largest};
    }
    std::vector<int> sizes = world_sizes_;
    const bool is_aside = settings_.by_default() && settings_.world_sizes.empty() &&
                          !settings_.full && !is_large(work);
    if (largest > 1 && (is_aside || (program.variant == "mirrored" && settings_.stages.empty()))) {
      std::erase(sizes, 1);  // stage 01's step, or nearly so: nothing is mirrored
    }
    return launcher == "torchrun" && torchrun_once() ? std::vector{largest} : sizes;
  }

  /// How often a program is timed. Without a word from the user one of those that run the same
  /// step is enough, and the others are only checked.
  int repetitions_of(const Configuration& work, const std::string& launcher) const {
    const StageProgram& program = work.program;
    const bool slow_start = launcher == "torchrun";
    if (!settings_.by_default() || program.name == kBaseline || program.name == kDistributed) {
      return slow_start ? settings_.few_repetitions() : settings_.most_repetitions();
    }
    const bool has_own_step = program.start == Start::kReplicas && program.variant == "main";
    const bool is_timed =
        settings_.full ? has_own_step || is_large(work) : has_own_step && is_large(work);
    return is_timed ? settings_.few_repetitions() : 0;
  }

  /// What the stages choose by themselves where memory can be shared.
  std::string default_backend(int nodes, int world_size) const {
    if (settings_.device == "cuda") {
      return "nccl";
    }
    const bool two_levels = nodes > 1 && world_size > nodes;
    return two_levels ? "hierarchical" : nodes > 1 ? "gloo" : "shm";
  }

  /// Every way in which the gradients of these runs are to travel.
  std::vector<Gradients> gradients_of(const Configuration& configuration) const {
    if (configuration.processes() == 1 || configuration.role == Role::kPeer ||
        configuration.program.variant == "by_hand") {
      return {Gradients()};  // they stay, or the program sends them as they are
    }
    std::vector<Gradients> ways;
    for (const double bucket_mib : settings_.bucket_mib) {
      for (const std::string& compression : settings_.gradient_compressions) {
        for (const std::string& shard : settings_.shard_optimizer) {
          ways.push_back({bucket_mib, compression, shard == "yes"});
        }
      }
    }
    return ways;
  }

  /// Adds what `configuration` does not say yet.
  void add(Configuration configuration, const std::string& launcher, const std::string& backend,
           int world_size) {
    if (backend == "mpi" && launcher != "mpirun") {
      return;  // MPI joins only processes that its own launcher started
    }
    configuration.launcher = launcher;
    configuration.world_size = world_size;
    configuration.nodes = launcher == "srun" ? nodes_of_.at(world_size) : 1;
    configuration.backend =
        backend.empty() ? default_backend(configuration.nodes, world_size) : backend;
    configuration.global_batch = configuration.scaling == "strong"
                                     ? configuration.parity_batch
                                     : configuration.workload.batch * world_size;
    for (const Gradients& gradients : gradients_of(configuration)) {
      configuration.gradients = gradients;
      plan_.configurations.push_back(configuration);
    }
  }

  /// @param work what is the same for all configurations of one workload and one kind of scaling
  void add_stages(Configuration work, const std::vector<StageProgram>& programs) {
    for (const StageProgram& program : programs) {
      work.program = program;
      for (const std::string& speedup : settings_.speedups) {
        work.speedup = speedup;
        if (program.variant == "mirrored" && speedup != "none") {
          continue;  // it refuses that
        }
        for (const std::string& launcher : launchers_of(program)) {
          // One model shows that it works.
          const bool is_left_to_another = settings_.full ? !is_large(work) : has(program, launcher);
          if (settings_.by_default() && program.start == Start::kLauncher && is_left_to_another) {
            continue;
          }
          work.repetitions = repetitions_of(work, launcher);
          const bool none = launcher == "none";
          for (const std::string& backend : none ? std::vector{launcher} : backends_) {
            for (const int world_size : world_sizes_of(work, launcher)) {
              add(work, launcher, backend, world_size);
            }
          }
        }
      }
    }
  }

  bool has(const StageProgram& program, const std::string& launcher) const {
    return any_configuration([&](const Configuration& configuration) {
      return configuration.program.name == program.name && configuration.launcher == launcher;
    });
  }

  /// What the same cores do as threads of one process.
  void add_threads(Configuration work) {
    work.threads = world_sizes_.back();
    if (work.threads == 1 || settings_.device != "cpu") {
      return;
    }
    work.program = known_programs().front();
    work.repetitions = settings_.few_repetitions();
    work.speedup = settings_.speedups.front();
    work.global_batch =
        work.scaling == "strong" ? work.parity_batch : work.workload.batch * work.threads;
    plan_.configurations.push_back(work);
  }

  /// One against whom a reader wants to see the stages, if it is there.
  void add_default_peer(Configuration work) {
    const std::string script = settings_.peers_dir + "/install.sh";
    if (!settings_.peers.empty() || world_sizes_.back() == 1 || !is_executable(script)) {
      return;
    }
    work.role = Role::kPeer;
    work.repetitions = settings_.few_repetitions();
    work.program = {kDefaultPeer, kDefaultPeer, kDefaultPeerVariant, Start::kSpawn};
    plan_.peer_pythons[kDefaultPeer] = "python3";  // until it is looked for
    add(work, "spawn", own_backend_of_peers(), world_sizes_.back());
  }

  /// Workloads from too small for several ranks to far larger.
  void add_sweep(const std::vector<StageProgram>& programs) {
    for (const char* const name : kSweep) {
      Configuration work;
      work.workload = *find_workload(name);
      work.device = settings_.device;
      work.parity_batch = common_batch(work.workload.batch);
      work.repetitions = settings_.few_repetitions();
      for (const StageProgram& program : programs) {
        work.program = program;
        if (program.name == kBaseline) {
          add(work, "none", "none", 1);
        } else if (program.name == kDistributed) {
          add(work, "spawn", "", world_sizes_.back());
        }
      }
    }
  }

  /// What PyTorch has itself.
  std::string own_backend_of_peers() const { return settings_.device == "cuda" ? "nccl" : "gloo"; }

  void add_peers(Configuration work) {
    work.role = Role::kPeer;
    work.repetitions = settings_.few_repetitions();
    const std::string own = own_backend_of_peers();
    for (const PeerVariant& peer : known_peers()) {
      if (!contains(settings_.peers, peer.peer)) {
        continue;
      }
      if (!peer.device.empty() && peer.device != settings_.device) {
        leave_out_once(
            peer.peer + " " + peer.variant,
            fmt::format("it computes on a {} only", peer.device == "cuda" ? "GPU" : "CPU"));
        continue;
      }
      if (!peer.built_here) {
        plan_.peer_pythons[peer.peer] = "python3";  // until it is installed
      }
      work.program = {peer.peer, peer.peer, peer.variant, peer.start};
      const bool replicas = peer.start == Start::kReplicas;
      const std::vector<std::string> backends =
          peer.built_here && !replicas ? backends_
                                       : std::vector<std::string>{replicas ? "none" : own};
      for (const int world_size : world_sizes_) {
        if ((world_size == 1) == peer.one_process) {
          for (const std::string& backend : backends) {
            add(work, replicas ? "none" : "spawn", backend, world_size);
          }
        }
      }
    }
  }

  void say_what_is_left_out() {
    if (contains(backends_, "mpi")) {
      if (!any_configuration([](const Configuration& c) { return c.backend == "mpi"; })) {
        throw UsageError(
            "--backends mpi: no stage is started by mpirun, expected mpirun in PATH and among "
            "--launchers, and 04_ddp_launcher or 05_multinode among --stages");
      }
      leave_out("mpi under other launchers than mpirun",
                "MPI joins only processes that mpirun started");
    }
    if (settings_.by_default()) {
      return;  // what is only checked says so
    }
    const bool torchrun = any_configuration(
        [&](const Configuration& c) { return c.launcher == "torchrun" && !is_sampled(c.program); });
    if (torchrun && torchrun_once() && world_sizes_.size() > 1 && !settings_.quick) {
      leave_out(fmt::format("torchrun at world sizes below {}", world_sizes_.back()),
                "each start takes seconds; --launchers spawn,torchrun,mpirun adds them");
    }
    for (const StageProgram& program : known_programs()) {
      if (is_sampled(program) && any_configuration([&](const Configuration& c) {
            return c.program.name == program.name;
          })) {
        leave_out(program.name +
                      " at other world sizes, under other launchers, and without communication",
                  "on one node its step is that of 04_ddp_launcher; --stages 01,02,03,04,05 adds "
                  "them");
      }
    }
  }

  /// The same answer that Google Benchmark gives, before anything is run.
  void apply_filter() {
    const std::string& filter = settings_.filter;
    if (filter.empty() || filter == "all") {
      return;
    }
    const bool negative = filter[0] == '-';
    std::regex regex;
    try {
      regex.assign(negative ? filter.substr(1) : filter, std::regex::extended);
    } catch (const std::regex_error& error) {
      throw UsageError(
          fmt::format("--benchmark_filter: expected a regular expression, got \"{}\"", filter));
    }
    std::erase_if(plan_.configurations, [&](const Configuration& configuration) {
      return std::regex_search(configuration.name() + kBenchmarkSuffix, regex) == negative;
    });
    if (!any_configuration(&Configuration::is_timed)) {
      throw UsageError(fmt::format("--benchmark_filter: no configuration matches \"{}\"", filter));
    }
  }

  /// It is one of those that the report is about, not one that answers a question at the side.
  bool is_core(const Configuration& configuration) const {
    const std::string& program = configuration.program.name;
    const bool in_sweep =
        settings_.models.empty() && configuration.workload.name.find('@') != std::string::npos;
    return configuration.role == Role::kStage && configuration.is_timed() && !in_sweep &&
           (!settings_.by_default() || program == kBaseline || program == kDistributed);
  }

  /// A second copy of stage 01 and of the largest world size of each group: what two
  /// equal things differ by is the least that can be said about different ones.
  void add_controls() {
    // Two keys for each group, for one process and for several.
    std::map<std::string, Configuration> controls;
    const auto cost = [](const Configuration& configuration) {
      return (configuration.launcher == "torchrun" ? 4 : 0) +
             (configuration.program.variant != "main" ? 2 : 0) +
             (configuration.program.start != Start::kSpawn ? 1 : 0);
    };
    for (const Configuration& configuration : plan_.configurations) {
      const bool several = configuration.communicates();
      if (!is_core(configuration) || (!several && !configuration.is_baseline())) {
        continue;
      }
      const auto [control, is_first] =
          controls.try_emplace(fmt::format("{}/{}/{}", configuration.workload.name,
                                           configuration.scaling, several ? "n" : "1"),
                               configuration);
      // The largest world size comes last.
      if (!is_first && cost(configuration) <= cost(control->second)) {
        control->second = configuration;
      }
    }
    for (auto& [group, control] : controls) {
      control.role = Role::kControl;
      plan_.configurations.push_back(control);
    }
  }

  /// The same without gradient exchange, to tell what communication costs.
  void add_runs_without_communication() {
    std::vector<Configuration> more;
    for (const Configuration& configuration : plan_.configurations) {
      if (!is_core(configuration) || !configuration.communicates() ||
          is_sampled(configuration.program)) {
        continue;
      }
      // Who started the ranks makes no difference to it, and torchrun takes seconds.
      const bool another_launcher = any_configuration([&](const Configuration& other) {
        Configuration same = other;
        same.launcher = "torchrun";
        return other.launcher != "torchrun" && same.name() == configuration.name();
      });
      if (configuration.launcher == "torchrun" && another_launcher) {
        continue;
      }
      more.push_back(configuration);
      more.back().role = Role::kNoCommunication;
    }
    plan_.configurations.insert(plan_.configurations.end(), more.begin(), more.end());
  }

  Plan plan_;
  const Settings& settings_ = plan_.settings;
  std::string large_model_;  // that has the most arithmetic in a step
  std::vector<int> world_sizes_;  // ascending
  std::map<int, int> nodes_of_;  // of each world size, for srun
  std::vector<std::string> backends_;
};

}  // namespace

Plan make_plan(Settings settings) {
  return Planner(std::move(settings)).make();
}

}  // namespace ddp::bench
