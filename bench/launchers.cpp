#include "bench/launchers.hpp"

#include <cstdlib>
#include <filesystem>

#include "common/base/process.hpp"

namespace ddp::bench {
namespace {

using Words = std::vector<std::string>;

/// Path of a launcher; empty if it is not there.
std::string path_of(const Starter& starter, const Settings& settings) {
  if (starter.starts == LaunchKind::kSpawn) {
    return settings.stage_dir;  // the program itself
  }
  const auto checkout = std::filesystem::path(settings.peers_dir).parent_path().parent_path();
  const std::string own = checkout / ".venv" / "bin" / starter.name;
  return starter.is_python && is_executable(own) ? own : find_in_path(starter.name).value_or("");
}

Words torchrun(const Run& run, const std::string& path, const Settings&) {
  return {path, "--standalone", fmt::format("--nproc_per_node={}", run.world_size), "--no-python"};
}

/// bench itself, for a program that does not start its ranks.
Words start_ranks_of(const Run& run, const std::string&, const Settings&) {
  return {std::filesystem::read_symlink("/proc/self/exe"), kStartRanks,
          std::to_string(run.world_size)};
}

/// Unbound, as under the other launchers: else Gloo's threads would share the rank's only core.
Words mpirun(const Run& run, const std::string& path, const Settings&) {
  const std::string ranks = std::to_string(run.world_size);
  return {path, "--oversubscribe", "--bind-to", "none", "--allow-run-as-root", "-np", ranks};
}

/// Reason against an installed launcher; empty for none. Stages do not know other MPIs' variables.
std::string refusal_of(const Starter& starter, const std::string& path) {
  const std::string version = starter.has_mpi ? answer_of({path, "--version"}) : "Open MPI";
  const bool is_open_mpi =
      version.find("Open MPI") != std::string::npos || version.find("OpenRTE") != std::string::npos;
  return is_open_mpi ? "" : path + " is not Open MPI's";
}

/// As in slurm/job.sh, on some of the nodes of the job.
Words srun(const Run& run, const std::string& path, const Settings& settings) {
  const int nodes = environment_number("SLURM_JOB_NUM_NODES", 1);
  if (nodes < run.nodes) {
    refuse("SLURM_JOB_NUM_NODES: got {}, expected at least {}", nodes, run.nodes);
  }
  const int per_node = run.world_size / run.nodes;
  // From the first node of the job on, where bench runs: rank 0 writes the metrics to bench's
  // scratch folder, which is on that node only.
  const char* const here = std::getenv("SLURMD_NODENAME");
  const bool stays_here = run.nodes == 1 && here != nullptr;
  Words argv = {path, stays_here ? std::string("--nodelist=") + here : "--relative=0"};
  add_words(argv, "--nodes={} --ntasks={} --ntasks-per-node={} --kill-on-bad-exit=1", run.nodes,
            run.world_size, per_node);
  argv.push_back("--chdir=" +
                 (run.command ? std::filesystem::current_path().native() : settings.stage_dir));
  const int asked = environment_number("SLURM_CPUS_PER_TASK", 0);
  const int cpus = environment_number("SLURM_CPUS_ON_NODE", per_node * std::max(asked, 1));
  if (asked > 0) {
    argv.push_back(fmt::format("--cpus-per-task={}", std::clamp(cpus / per_node, 1, asked)));
  }
  if (per_node > cpus) {
    argv.push_back("--overcommit");
  }
  return argv;
}

}  // namespace

const std::vector<Starter>& starters() {
  static const std::vector<Starter> rows = {
      {.name = kSpawnLauncher.name, .starts = LaunchKind::kSpawn, .command = start_ranks_of},
      {.name = kTorchrunName, .is_python = true, .command = torchrun},
      {.name = kMpirunName, .has_mpi = true, .command = mpirun},
      {.name = kSrunName, .spans_nodes = true, .command = srun},
  };
  return rows;
}

const Starter& find_starter(const std::string& name) {
  static const Starter none = {.name = "none", .starts = LaunchKind::kAlone};
  const auto found = std::ranges::find(starters(), name, &Starter::name);
  return found == starters().end() ? none : *found;
}

std::map<std::string, std::string> find_launchers(const Settings& settings,
                                                  std::vector<NotRun>& not_run) {
  std::map<std::string, std::string> paths;
  for (const Starter& row : starters()) {
    const bool is_elsewhere = row.spans_nodes && std::getenv("SLURM_JOB_ID") == nullptr;
    if (settings.launchers.empty() ? is_elsewhere : !contains(settings.launchers, row.name)) {
      continue;
    }
    const std::string path = path_of(row, settings);
    const std::string missing = is_elsewhere   ? "there is no allocation (SLURM_JOB_ID is not set)"
                                : path.empty() ? "it is not in PATH"
                                               : refusal_of(row, path);
    if (missing.empty()) {
      paths[row.name] = path;
    } else if (settings.launchers.empty()) {
      not_run.push_back({row.name, missing});
    } else {
      refuse("--launchers {}: {}", row.name, missing);
    }
  }
  return paths;
}

int environment_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  const int number = text == nullptr ? 0 : std::atoi(text);
  return number > 0 ? number : otherwise;
}

std::string answer_of(const Words& argv) {
  try {
    const CaptureResult result = CapturedChild(argv).wait();
    return result.exit_code == 0 ? result.out : "";
  } catch (const std::system_error&) {
    return "";
  }
}

}  // namespace ddp::bench
