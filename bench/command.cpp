#include "bench/command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"

namespace ddp::bench {
namespace {

/// The same for all runs: an epoch's first step is not as the others.
constexpr std::int64_t kStepsPerEpoch = 16;
/// More would let the rounding of sums in another order grow.
constexpr std::int64_t kParitySteps = 48;

Length length_of(std::int64_t global_batch, std::int64_t steps) {
  return {.global_batch = global_batch,
          .dataset_size = kStepsPerEpoch * global_batch,
          .epochs = (steps + kStepsPerEpoch - 1) / kStepsPerEpoch};
}

int environment_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  const int number = text == nullptr ? 0 : std::atoi(text);
  return number > 0 ? number : otherwise;
}

/// srun and its options, as in slurm/05_multinode.sh.
std::vector<std::string> srun_command(const Run& run, const Plan& plan) {
  const char* const list = std::getenv("SLURM_JOB_NODELIST");
  std::vector<std::string> nodes;
  if (list != nullptr) {
    nodes = expand_node_list(list);
  }
  if (std::ssize(nodes) < run.nodes) {
    throw UsageError(fmt::format("SLURM_JOB_NODELIST: got {} nodes, expected at least {}",
                                 nodes.size(), run.nodes));
  }
  nodes.resize(static_cast<std::size_t>(run.nodes));
  const int per_node = run.world_size / run.nodes;
  // The first nodes of the job: bench runs on the first one, where rank 0 writes the metrics. The
  // scratch folder that bench is in exists on that node only.
  std::vector<std::string> argv = {plan.launchers.at("srun"),
                                   fmt::format("--nodelist={}", fmt::join(nodes, ",")),
                                   fmt::format("--nodes={}", run.nodes),
                                   fmt::format("--ntasks={}", run.world_size),
                                   fmt::format("--ntasks-per-node={}", per_node),
                                   "--kill-on-bad-exit=1",
                                   "--chdir=" + plan.settings.stage_dir};
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

std::vector<std::string> program_command(const Entry& entry, const Plan& plan) {
  if (const auto python = plan.pythons.find(entry.program); python != plan.pythons.end()) {
    return {python->second, plan.settings.peers_dir + "/" + entry.program + ".py"};
  }
  const bool is_peer = entry.run.kind == "peer";
  return {plan.settings.stage_dir + "/" +
          (is_peer ? "peer_" + entry.program : find_program(entry.program).executable)};
}

}  // namespace

Length parity_length(const Entry& entry) {
  return length_of(entry.parity_batch, kParitySteps);
}

Length timed_length(const Entry& entry, const Settings& settings) {
  const std::int64_t timed_steps = settings.steps.value_or(entry.model.timed_steps());
  Length length = length_of(entry.run.global_batch, timed_steps + entry.model.warmup_steps());
  length.timed_steps = timed_steps;
  return length;
}

std::vector<std::string> launcher_command(const Run& run, const Plan& plan) {
  const std::string ranks = std::to_string(run.world_size);
  if (run.launcher == "torchrun") {
    return {plan.launchers.at("torchrun"), "--standalone", "--nproc_per_node=" + ranks,
            "--no-python"};
  }
  if (run.launcher == "mpirun") {
    // Unbound, as the other launchers start them: Gloo's threads would share the rank's only core.
    std::vector<std::string> argv = {plan.launchers.at("mpirun"), "--oversubscribe", "--bind-to",
                                     "none"};
    if (geteuid() == 0) {
      argv.push_back("--allow-run-as-root");
    }
    argv.insert(argv.end(), {"-np", ranks});
    return argv;
  }
  return run.launcher == "srun" ? srun_command(run, plan) : std::vector<std::string>();
}

std::vector<std::string> command_line(const Entry& entry, const Plan& plan, const Length& length,
                                      const std::string& folder) {
  const Run& run = entry.run;
  std::vector<std::string> argv = launcher_command(run, plan);
  const auto append = [&argv](const std::vector<std::string>& more) {
    argv.insert(argv.end(), more.begin(), more.end());
  };
  append(program_command(entry, plan));
  // It saves only at the end: training is what is measured.
  const std::string epochs = std::to_string(length.epochs);
  append({epochs, epochs, "--global-batch", std::to_string(length.global_batch), "--layers",
          fmt::format("{}", fmt::join(run.layers, ",")), "--dataset-size",
          std::to_string(length.dataset_size)});
  if (entry.role == Role::kPeer) {
    append({"--variant", run.variant});
  } else {
    append(find_program(entry.program).options);
  }
  if (entry.start == Start::kReplicas || entry.start == Start::kSpawn) {
    append({"--nprocs", std::to_string(run.world_size)});
  }
  append({"--threads", std::to_string(run.threads), "--seed", std::to_string(plan.settings.seed),
          "--device", run.device});
  if (!plan.pythons.contains(entry.program)) {  // which neither save nor choose a backend
    append({"--resume", "never", "--snapshot", folder + "/snapshot.safetensors"});
    if (run.backend != "none") {
      append({"--backend", run.backend});
    }
  }
  if (entry.role == Role::kNoCommunication) {
    append({"--no-communication"});
  }
  append({"--quiet", "--metrics", folder + "/metrics.jsonl"});
  return argv;
}

}  // namespace ddp::bench
