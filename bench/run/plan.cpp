#include "bench/run/plan.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <regex>

#include "bench/run/catalog.hpp"
#include "bench/run/discovery.hpp"
#include "bench/run/machine.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"

#ifndef DDP_PEERS_DIR
#define DDP_PEERS_DIR "bench/peers"
#endif

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

/// "auto" is decided here, and the stages are told: the report then never names the wrong device.
std::string pick_device(const std::string& asked, const fs::path& stage_dir) {
  if (asked != "auto") {
    return asked;
  }
  const bool built_with_cuda = fs::exists(stage_dir.parent_path() / "lib" / "libddp_cuda.so");
  return built_with_cuda && visible_gpus() > 0 ? "cuda" : "cpu";
}

std::vector<StageProgram> pick_programs(const Settings& settings, Plan& plan) {
  const auto exists = [&](const StageProgram& program) {
    return is_executable((fs::path(plan.stage_dir) / program.name).string());
  };
  for (const std::string& asked : settings.stages) {
    bool known = false;
    for (const StageProgram& program : known_programs()) {
      const bool by_number = program.name.substr(0, 2) == asked;
      known = known || by_number || program.name == asked;
      if (program.name == asked && !exists(program)) {
        throw UsageError("--stages " + asked + ": not there, expected a program in " +
                         plan.stage_dir);
      }
    }
    if (!known) {
      throw UsageError(
          "--stages: expected a program such as 03_ddp_spawn, or a number from 01 to "
          "05, got \"" +
          asked + "\"");
    }
  }
  std::vector<StageProgram> programs;
  for (const StageProgram& program : known_programs()) {
    const bool several_nodes = program.name == kMultinode && settings.nodes > 1;
    const bool by_name = contains(settings.stages, program.name) ||
                         contains(settings.stages, program.name.substr(0, 2));
    const bool asked =
        program.name == kBaseline || by_name || (settings.stages.empty() && program.by_default);
    if (!asked || (settings.nodes > 1 && !several_nodes && program.name != kBaseline)) {
      continue;
    }
    if (exists(program)) {
      programs.push_back(program);
    } else if (program.name == kBaseline) {
      throw UsageError(std::string(kBaseline) + " is not in " + plan.stage_dir +
                       ": everything is compared with it, expected it next to bench");
    } else {
      plan.not_run.push_back({program.name, "not built: no such program in " + plan.stage_dir});
    }
  }
  return programs;
}

std::vector<Workload> pick_workloads(const Settings& settings) {
  const std::vector<std::string> names =
      settings.models.empty() ? std::vector<std::string>{"T", "digits"} : settings.models;
  const auto lower = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  };
  std::vector<Workload> workloads;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(known_workloads().begin(), known_workloads().end(),
                     [&](const Workload& workload) { return lower(workload.name) == lower(name); });
    if (found == known_workloads().end()) {
      throw UsageError("--models: expected T, S, M, L or digits, got \"" + name + "\"");
    }
    const bool again = std::any_of(workloads.begin(), workloads.end(),
                                   [&](const Workload& w) { return w.name == found->name; });
    if (!again) {
      workloads.push_back(*found);
    }
  }
  return workloads;
}

std::vector<int> pick_world_sizes(const Settings& settings, Plan& plan) {
  const bool cuda = plan.device == "cuda";
  const int units = settings.nodes * (cuda ? visible_gpus() : available_cores());
  const std::string what = cuda ? " GPUs" : " cores";
  std::vector<int> sizes = settings.world_sizes;
  if (sizes.empty() && settings.nodes > 1) {
    sizes.push_back(units);
  } else if (sizes.empty()) {
    for (const int size : {1, 2, 4}) {
      if (size <= std::max(units, 1)) {
        sizes.push_back(size);
      } else {
        plan.not_run.push_back({"world size " + std::to_string(size),
                                "this machine has " + std::to_string(units) + what});
      }
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  for (const int size : sizes) {
    if (size % settings.nodes != 0) {
      throw UsageError("--world-sizes: got " + std::to_string(size) + ", expected a multiple of " +
                       std::to_string(settings.nodes) + ", the number of --nodes");
    }
  }
  if (sizes.back() > units) {
    plan.notes.push_back(std::to_string(sizes.back()) + " ranks share " + std::to_string(units) +
                         what + ": more than one rank waits for the same one");
  }
  return sizes;
}

void find_launchers(const Settings& settings, Plan& plan) {
  const auto wanted = [&](const std::string& name) {
    return settings.launchers.empty() || contains(settings.launchers, name);
  };
  if (wanted("spawn")) {
    plan.launchers["spawn"] = {"", std::nullopt};
  }
  for (const std::string name : {"torchrun", "mpirun", "srun"}) {
    const bool srun = name == "srun";
    if (!wanted(name) || (srun && settings.launchers.empty() && !inside_slurm_allocation())) {
      continue;
    }
    std::string where = name == "torchrun" ? "neither in .venv nor in PATH" : "not in PATH";
    std::optional<std::string> path =
        name == "torchrun" ? find_torchrun(plan.stage_dir) : find_in_path(name);
    if (srun && path && !inside_slurm_allocation()) {
      path.reset();
      where = "no allocation (SLURM_JOB_ID is not set)";
    }
    if (path) {
      plan.launchers[name] = {*path, std::nullopt};
    } else if (!settings.launchers.empty()) {
      throw UsageError("--launchers " + name + ": " + where + ", expected " +
                       (srun ? "to run inside an allocation" : "an executable"));
    } else {
      plan.not_run.push_back({name, where});
    }
  }
}

/// The batch over all ranks that every world size divides: the model's times the largest one.
std::int64_t common_batch(std::int64_t batch, const std::vector<int>& world_sizes) {
  const std::int64_t largest = batch * world_sizes.back();
  const bool divides = std::all_of(world_sizes.begin(), world_sizes.end(),
                                   [&](int size) { return largest % size == 0; });
  return divides ? largest
                 : batch * std::accumulate(world_sizes.begin(), world_sizes.end(), std::int64_t{1},
                                           [](std::int64_t a, int b) {
                                             return std::lcm(a, static_cast<std::int64_t>(b));
                                           });
}

/// What the stages choose by themselves where memory can be shared.
std::string default_backend(const Plan& plan, int nodes, int world_size) {
  if (plan.device == "cuda") {
    return "nccl";
  }
  const bool two_levels = nodes > 1 && world_size > nodes;
  return two_levels ? "hierarchical" : nodes > 1 ? "gloo" : "shm";
}

/// MPI joins only processes that its own launcher started.
bool can_start(const std::string& launcher, const std::string& backend) {
  return backend != "mpi" || launcher == "mpirun";
}

/// Between one node's ranks stage 05 makes the step of stage 04, so unless it is asked for by name
/// one run of it stands for all.
bool is_sampled(const StageProgram& program, const Settings& settings) {
  return program.name == kMultinode && settings.stages.empty() && settings.nodes == 1;
}

std::vector<std::string> launchers_of(const StageProgram& program, const Settings& settings,
                                      const Plan& plan) {
  if (program.start == Start::kAlone || program.start == Start::kReplicas) {
    return {"none"};
  }
  std::vector<std::string> names;
  const std::vector<std::string> candidates =
      program.start == Start::kSpawn ? std::vector<std::string>{"spawn"}
                                     : std::vector<std::string>{"torchrun", "mpirun", "srun"};
  for (const std::string& name : candidates) {
    if (plan.launchers.count(name) > 0) {
      names.push_back(name);
    }
  }
  if (is_sampled(program, settings) && !names.empty()) {
    names.resize(1);
  }
  return names;
}

/// @param all ascending
std::vector<int> world_sizes_of(const StageProgram& program, const Settings& settings,
                                const std::vector<int>& all) {
  if (program.start == Start::kAlone) {
    return {1};
  }
  if (settings.quick) {
    return {all.back()};
  }
  const bool two = std::find(all.begin(), all.end(), 2) != all.end();
  return is_sampled(program, settings) ? std::vector<int>{two ? 2 : all.back()} : all;
}

/// The same answer that Google Benchmark gives, before anything is run.
void apply_filter(const std::string& filter, Plan& plan) {
  if (filter.empty() || filter == "all") {
    return;
  }
  const bool negative = filter[0] == '-';
  std::regex regex;
  try {
    regex.assign(negative ? filter.substr(1) : filter, std::regex::extended);
  } catch (const std::regex_error& error) {
    throw UsageError("--benchmark_filter: expected a regular expression, got \"" + filter + "\"");
  }
  std::vector<Configuration> kept;
  for (const Configuration& configuration : plan.configurations) {
    if (std::regex_search(configuration.name() + kBenchmarkSuffix, regex) != negative) {
      kept.push_back(configuration);
    }
  }
  if (kept.empty()) {
    throw UsageError("--benchmark_filter: no configuration matches \"" + filter + "\"");
  }
  plan.configurations = std::move(kept);
}

/// What is the same for all configurations of one workload and one kind of scaling.
struct Group {
  const Settings& settings;
  const Workload& workload;
  const std::string& scaling;
  const std::vector<int>& world_sizes;

  Configuration configuration(const StageProgram& program, const std::string& device,
                              int world_size) const {
    Configuration configuration;
    configuration.workload = workload;
    configuration.program = program;
    configuration.device = device;
    configuration.scaling = scaling;
    configuration.world_size = world_size;
    configuration.parity_batch = common_batch(workload.batch, world_sizes);
    configuration.global_batch =
        scaling == "strong" ? configuration.parity_batch : workload.batch * world_size;
    return configuration;
  }
};

/// Every way in which the gradients of these runs are to travel.
std::vector<Gradients> gradients_of(const Settings& settings, const StageProgram& program,
                                    const std::string& launcher, int world_size) {
  if (launcher == "none" || world_size == 1 || program.variant == "by_hand") {
    return {Gradients()};  // they stay, or the program sends them as they are
  }
  std::vector<Gradients> ways;
  for (const double bucket_mib : settings.bucket_mib) {
    for (const std::string& compression : settings.gradient_compressions) {
      for (const std::string& shard : settings.shard_optimizer) {
        ways.push_back({bucket_mib, compression, shard == "yes"});
      }
    }
  }
  return ways;
}

/// @return true if world sizes of torchrun were left out
bool add_stages(const Group& group, const std::vector<StageProgram>& programs,
                const std::vector<std::string>& backends, Plan& plan) {
  const Settings& settings = group.settings;
  // A start under torchrun takes seconds, so without a word from the user it has one world size.
  const bool torchrun_once = settings.launchers.empty() && settings.world_sizes.empty();
  bool left_out_torchrun = false;
  for (const StageProgram& program : programs) {
    for (const std::string& speedup : settings.speedups) {
      for (const std::string& launcher : launchers_of(program, settings, plan)) {
        for (const std::string& backend :
             launcher == "none" ? std::vector<std::string>{"none"} : backends) {
          if (!can_start(launcher, backend)) {
            continue;
          }
          for (const int world_size : world_sizes_of(program, settings, group.world_sizes)) {
            const bool largest = world_size == group.world_sizes.back();
            if (launcher == "torchrun" && torchrun_once && !largest &&
                !is_sampled(program, settings)) {
              left_out_torchrun = true;
              continue;
            }
            Configuration configuration = group.configuration(program, plan.device, world_size);
            configuration.launcher = launcher;
            configuration.backend =
                backend.empty() ? default_backend(plan, settings.nodes, world_size) : backend;
            configuration.speedup = speedup;
            configuration.nodes = launcher == "srun" ? settings.nodes : 1;
            for (const Gradients& gradients :
                 gradients_of(settings, program, launcher, world_size)) {
              configuration.gradients = gradients;
              plan.configurations.push_back(configuration);
            }
          }
        }
      }
    }
  }
  return left_out_torchrun;
}

void add_peers(const Group& group, const std::vector<std::string>& backends, Plan& plan) {
  for (const PeerVariant& peer : known_peers()) {
    if (!contains(group.settings.peers, peer.peer) || (peer.cuda_only && plan.device != "cuda")) {
      continue;
    }
    for (const int world_size : group.world_sizes) {
      if ((world_size == 1) != peer.one_process) {
        continue;
      }
      Configuration configuration = group.configuration(
          {peer.peer, peer.peer, peer.variant, Start::kSpawn, false}, plan.device, world_size);
      configuration.role = Role::kPeer;
      configuration.launcher = "spawn";
      const std::string own = plan.device == "cuda" ? "nccl" : "gloo";  // what PyTorch has itself
      for (const std::string& backend : peer.built_here ? backends : std::vector{own}) {
        if (can_start(configuration.launcher, backend)) {
          configuration.backend =
              backend.empty() ? default_backend(plan, configuration.nodes, world_size) : backend;
          plan.configurations.push_back(configuration);
        }
      }
    }
  }
}

/// A second copy of the fastest and of the most talkative configuration of each group: what two
/// equal things differ by is the least that can be said about different ones.
void add_controls(Plan& plan) {
  // Two keys for each group, for one process and for several.
  std::map<std::string, const Configuration*> originals;
  const auto cost = [](const Configuration& configuration) {
    return (configuration.launcher == "torchrun" ? 4 : 0) +
           (configuration.program.variant != "main" ? 2 : 0) +
           (configuration.program.start != Start::kSpawn ? 1 : 0);
  };
  for (const Configuration& configuration : plan.configurations) {
    const bool several = configuration.communicates();
    if (configuration.role != Role::kStage || (!several && !configuration.is_baseline())) {
      continue;
    }
    const Configuration*& original = originals[configuration.workload.name + "/" +
                                               configuration.scaling + (several ? "/n" : "/1")];
    // The largest world size comes last.
    if (original == nullptr || cost(configuration) <= cost(*original)) {
      original = &configuration;
    }
  }
  std::vector<Configuration> controls;
  for (const auto& [group, original] : originals) {
    controls.push_back(*original);
    controls.back().role = Role::kControl;
  }
  plan.configurations.insert(plan.configurations.end(), controls.begin(), controls.end());
}

/// The same without gradient exchange, to tell what communication costs.
void add_runs_without_communication(const Settings& settings, Plan& plan) {
  std::vector<Configuration> more;
  for (const Configuration& configuration : plan.configurations) {
    if (configuration.role != Role::kStage || !configuration.communicates() ||
        is_sampled(configuration.program, settings)) {
      continue;
    }
    // Who started the ranks makes no difference to it, and torchrun takes seconds.
    const bool another_launcher = std::any_of(
        plan.configurations.begin(), plan.configurations.end(), [&](const Configuration& other) {
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
  plan.configurations.insert(plan.configurations.end(), more.begin(), more.end());
}

}  // namespace

Plan make_plan(const Settings& settings) {
  Plan plan;
  std::error_code error;
  plan.stage_dir =
      fs::canonical(settings.stage_dir.empty() ? fs::read_symlink("/proc/self/exe").parent_path()
                                               : fs::path(settings.stage_dir),
                    error)
          .string();
  if (error) {
    throw UsageError("--stage-dir: expected a folder, got \"" + settings.stage_dir + "\"");
  }
  plan.peers_dir = settings.peers_dir.empty() ? DDP_PEERS_DIR : settings.peers_dir;
  plan.device = pick_device(settings.device, plan.stage_dir);
  const std::vector<StageProgram> programs = pick_programs(settings, plan);
  const std::vector<Workload> workloads = pick_workloads(settings);
  const std::vector<int> world_sizes = pick_world_sizes(settings, plan);
  find_launchers(settings, plan);
  // An empty name: the default, which depends on the world size.
  const std::vector<std::string> backends =
      settings.backends.empty() ? std::vector<std::string>{""} : settings.backends;
  if (settings.backends.empty() && plan.device == "cpu" && settings.nodes == 1) {
    plan.not_run.push_back({"gloo", "shm is the default on one host; --backends shm,gloo adds it"});
  }
  for (const PeerVariant& peer : known_peers()) {
    if (contains(settings.peers, peer.peer) && !peer.built_here) {
      plan.peer_pythons[peer.peer] = "python3";  // until it is installed
    }
  }

  bool left_out_torchrun = false;
  for (const Workload& workload : workloads) {
    for (const std::string& scaling : settings.scaling) {
      const Group group = {settings, workload, scaling, world_sizes};
      left_out_torchrun = add_stages(group, programs, backends, plan) || left_out_torchrun;
      add_peers(group, backends, plan);
    }
  }
  if (contains(backends, "mpi")) {
    const bool any = std::any_of(plan.configurations.begin(), plan.configurations.end(),
                                 [](const Configuration& c) { return c.backend == "mpi"; });
    if (!any) {
      throw UsageError(
          "--backends mpi: no stage is started by mpirun, expected mpirun in PATH and among "
          "--launchers, and 04_ddp_launcher or 05_multinode among --stages");
    }
    plan.not_run.push_back(
        {"mpi under other launchers than mpirun", "MPI joins only processes that mpirun started"});
  }
  if (left_out_torchrun && !settings.quick) {
    plan.not_run.push_back(
        {"torchrun at world sizes below " + std::to_string(world_sizes.back()),
         "each start takes seconds; --launchers spawn,torchrun,mpirun adds them"});
  }
  const bool samples_multinode =
      std::any_of(plan.configurations.begin(), plan.configurations.end(),
                  [&](const Configuration& c) { return is_sampled(c.program, settings); });
  if (samples_multinode) {
    plan.not_run.push_back(
        {"05_multinode at other world sizes, under other launchers, and without communication",
         "on one node its step is that of 04_ddp_launcher; --stages 01,02,03,04,05 adds them"});
  }
  apply_filter(settings.filter, plan);
  if (settings.quick) {
    plan.not_run.push_back({"A/A controls and runs without communication", "--quick"});
  } else {
    add_controls(plan);
    add_runs_without_communication(settings, plan);
  }
  return plan;
}

}  // namespace ddp::bench
