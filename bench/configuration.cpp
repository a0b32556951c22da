#include "bench/configuration.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <regex>
#include <sstream>

#include "bench/machine.hpp"
#include "common/exit_codes.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBaseline = "01_single_gpu";

const std::vector<Workload>& known_workloads() {
  static const std::vector<Workload> workloads = {
      {"T", "the tutorial's 20-1, synthetic regression", 32, {"--layers", "20,1"}, true},
      {"S", "64-128-128-10, synthetic classes", 32, {"--layers", "64,128,128,10"}, true},
      {"M", "784-512-512-10, synthetic classes", 64, {"--layers", "784,512,512,10"}, true},
      {"L",
       "1024-1024-1024-1024, synthetic classes",
       64,
       {"--layers", "1024,1024,1024,1024"},
       true},
      {"digits",
       "64-128-128-10 on 1,797 handwritten digits",
       32,
       {"--dataset", "digits", "--hidden", "128,128"},
       false},
  };
  return workloads;
}

const std::vector<StageProgram>& known_programs() {
  static const std::vector<StageProgram> programs = {
      {kBaseline, "01_single_gpu", "main", Start::kAlone, true},
      {"02_data_parallel", "02_data_parallel", "main", Start::kReplicas, true},
      {"02_data_parallel_mirrored", "02_data_parallel", "mirrored", Start::kReplicas, false},
      {"03_ddp_spawn", "03_ddp_spawn", "main", Start::kSpawn, true},
      {"03_ddp_spawn_by_hand", "03_ddp_spawn", "by_hand", Start::kSpawn, true},
      {"04_ddp_launcher", "04_ddp_launcher", "main", Start::kLauncher, true},
      {"04_ddp_launcher_accelerated", "04_ddp_launcher", "accelerated", Start::kLauncher, false},
      {"05_multinode", "05_multinode", "main", Start::kLauncher, false},
  };
  return programs;
}

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool is_executable(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_in_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && is_executable(fs::path(folder) / name)) {
      return (fs::path(folder) / name).string();
    }
  }
  return std::nullopt;
}

/// The checkout's own environment first: its torchrun belongs to the LibTorch that was built with.
std::optional<std::string> find_torchrun(const fs::path& stage_dir) {
  for (fs::path folder = stage_dir;; folder = folder.parent_path()) {
    const fs::path candidate = folder / ".venv" / "bin" / "torchrun";
    if (is_executable(candidate)) {
      return candidate.string();
    }
    if (folder == folder.parent_path()) {
      return find_in_path("torchrun");
    }
  }
}

int visible_gpus() {
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string list = visible;
    const bool none = list.empty() || list[0] == '-';
    return none ? 0 : 1 + static_cast<int>(std::count(list.begin(), list.end(), ','));
  }
  int count = 0;
  while (fs::exists("/dev/nvidia" + std::to_string(count))) {
    ++count;
  }
  return count;
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
    return is_executable(fs::path(plan.stage_dir) / program.name);
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
    const bool asked = settings.stages.empty() || program.name == kBaseline ||
                       contains(settings.stages, program.name) ||
                       contains(settings.stages, program.name.substr(0, 2));
    if (!asked) {
      continue;
    }
    if (exists(program)) {
      programs.push_back(program);
    } else if (program.name == kBaseline) {
      throw UsageError(std::string(kBaseline) + " is not in " + plan.stage_dir +
                       ": everything is compared with it, expected it next to bench");
    } else if (program.by_default || !settings.stages.empty()) {
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

std::vector<int> pick_world_sizes(const Settings& settings, const std::string& device, Plan& plan) {
  const int units = device == "cuda" ? visible_gpus() : available_cores();
  const std::string what = device == "cuda" ? " GPUs" : " cores";
  std::vector<int> sizes = settings.world_sizes;
  if (sizes.empty()) {
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
  for (const std::string name : {"torchrun", "mpirun"}) {
    if (!wanted(name)) {
      continue;
    }
    const std::optional<std::string> path =
        name == "torchrun" ? find_torchrun(plan.stage_dir) : find_in_path(name);
    if (path) {
      plan.launchers[name] = {*path, std::nullopt};
      continue;
    }
    const std::string where = name == "torchrun" ? "neither in .venv nor in PATH" : "not in PATH";
    if (!settings.launchers.empty()) {
      throw UsageError(std::string("--launchers ")
                           .append(name)
                           .append(": ")
                           .append(where)
                           .append(", expected an executable"));
    }
    plan.not_run.push_back({name, where});
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

std::vector<std::string> launchers_of(const StageProgram& program, const Plan& plan) {
  if (program.start == Start::kAlone || program.start == Start::kReplicas) {
    return {"none"};
  }
  std::vector<std::string> names;
  const std::vector<std::string> candidates = program.start == Start::kSpawn
                                                  ? std::vector<std::string>{"spawn"}
                                                  : std::vector<std::string>{"torchrun", "mpirun"};
  for (const std::string& name : candidates) {
    if (plan.launchers.count(name) > 0) {
      names.push_back(name);
    }
  }
  return names;
}

/// Google Benchmark appends this to the name of what is registered with Iterations and manual time.
constexpr const char* kBenchmarkSuffix = "/iterations:1/manual_time";

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

}  // namespace

std::string Configuration::name() const {
  std::string text = workload.name + "/" + scaling + "/" + program.name;
  for (const std::string& part : {launcher, backend}) {
    text += part == "none" ? "" : "/" + part;
  }
  text += speedup == "none" ? "" : "/" + speedup;
  return text + "/ranks:" + std::to_string(world_size);
}

int Configuration::processes() const {
  const bool one = program.start == Start::kAlone || program.start == Start::kReplicas;
  return one ? 1 : world_size;
}

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
  const std::string device = pick_device(settings.device, plan.stage_dir);
  const std::vector<StageProgram> programs = pick_programs(settings, plan);
  const std::vector<Workload> workloads = pick_workloads(settings);
  const std::vector<int> world_sizes = pick_world_sizes(settings, device, plan);
  find_launchers(settings, plan);
  const std::vector<std::string> backends =
      settings.backends.empty() ? std::vector<std::string>{device == "cuda" ? "nccl" : "gloo"}
                                : settings.backends;

  // A start under torchrun takes seconds, so without a word from the user it has one world size.
  const bool torchrun_once = settings.launchers.empty() && settings.world_sizes.empty();
  bool left_out_torchrun = false;
  for (const Workload& workload : workloads) {
    for (const std::string& scaling : settings.scaling) {
      for (const StageProgram& program : programs) {
        const std::vector<int> sizes =
            program.start == Start::kAlone ? std::vector<int>{1} : world_sizes;
        for (const std::string& launcher : launchers_of(program, plan)) {
          const bool has_backend = launcher != "none";
          for (const std::string& backend :
               has_backend ? backends : std::vector<std::string>{"none"}) {
            for (const int world_size : sizes) {
              const bool largest = world_size == sizes.back();
              if (settings.quick && !largest) {
                continue;
              }
              if (launcher == "torchrun" && torchrun_once && !largest) {
                left_out_torchrun = true;
                continue;
              }
              Configuration configuration;
              configuration.workload = workload;
              configuration.program = program;
              configuration.launcher = launcher;
              configuration.backend = backend;
              configuration.device = device;
              configuration.speedup = settings.speedup;
              configuration.scaling = scaling;
              configuration.world_size = world_size;
              configuration.parity_batch = common_batch(workload.batch, world_sizes);
              configuration.global_batch =
                  scaling == "strong" ? configuration.parity_batch : workload.batch * world_size;
              plan.configurations.push_back(configuration);
            }
          }
        }
      }
    }
  }
  if (left_out_torchrun && !settings.quick) {
    plan.not_run.push_back(
        {"torchrun at world sizes below " + std::to_string(world_sizes.back()),
         "each start takes seconds; --launchers spawn,torchrun,mpirun adds them"});
  }
  apply_filter(settings.filter, plan);
  return plan;
}

std::vector<std::string> command_line(const Configuration& configuration, const Plan& plan,
                                      std::int64_t global_batch, const RunLength& length,
                                      std::uint64_t seed, const std::string& metrics_path,
                                      const std::string& snapshot_path) {
  const std::string ranks = std::to_string(configuration.world_size);
  std::vector<std::string> argv;
  const auto add = [&](std::initializer_list<std::string> parts) {
    argv.insert(argv.end(), parts);
  };
  if (configuration.launcher == "torchrun") {
    add({plan.launchers.at("torchrun").path, "--standalone", "--nproc_per_node=" + ranks,
         "--no-python"});
  } else if (configuration.launcher == "mpirun") {
    // Unbound, as the other launchers start them: Gloo's threads would share the rank's only core.
    add({plan.launchers.at("mpirun").path, "--oversubscribe", "--bind-to", "none"});
    if (geteuid() == 0) {
      add({"--allow-run-as-root"});
    }
    add({"-np", ranks});
  }
  add({(fs::path(plan.stage_dir) / configuration.program.name).string()});
  // No snapshot before the end: what is measured is training.
  add({std::to_string(length.epochs), std::to_string(length.epochs)});
  add({"--global-batch", std::to_string(global_batch)});
  argv.insert(argv.end(), configuration.workload.stage_options.begin(),
              configuration.workload.stage_options.end());
  if (length.dataset_size > 0) {
    add({"--dataset-size", std::to_string(length.dataset_size)});
  }
  if (configuration.program.start == Start::kReplicas ||
      configuration.program.start == Start::kSpawn) {
    add({"--nprocs", ranks});
  }
  add({"--seed", std::to_string(seed), "--device", configuration.device});
  if (configuration.backend != "none") {
    add({"--backend", configuration.backend});
  }
  if (configuration.speedup != "none") {
    add({"--speedup", configuration.speedup});
  }
  add({"--resume", "never", "--quiet", "--snapshot", snapshot_path, "--metrics", metrics_path});
  return argv;
}

}  // namespace ddp::bench
