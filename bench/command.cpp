#include "bench/command.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/refuse.hpp"

namespace ddp::bench {
namespace {

/// Equal for all runs, because an epoch's first step is longer.
constexpr std::int64_t kStepsPerEpoch = 16;
/// Few steps, so that rounding differences by another order of sums do not grow.
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

/// srun command as in slurm/job.sh, on some of the nodes of the job.
std::vector<std::string> srun_command(const Run& run, const Plan& plan) {
  const int nodes = environment_number("SLURM_JOB_NUM_NODES", 1);
  if (nodes < run.nodes) {
    refuse("SLURM_JOB_NUM_NODES: got {}, expected at least {}", nodes, run.nodes);
  }
  const int per_node = run.world_size / run.nodes;
  // From the first node of the job on, where bench runs: rank 0 writes the metrics to bench's
  // scratch folder, which is on that node only.
  const char* const here = std::getenv("SLURMD_NODENAME");
  const bool stays_here = run.nodes == 1 && here != nullptr;
  std::vector<std::string> argv = {plan.launchers.at("srun"),
                                   stays_here ? std::string("--nodelist=") + here : "--relative=0",
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

}  // namespace

Length parity_length(const Entry& entry) {
  return length_of(entry.parity_batch, kParitySteps);
}

Length timed_length(const Entry& entry, const Settings& settings) {
  const std::int64_t timed_steps = settings.steps.value_or(entry.model.timed_steps);
  Length length = length_of(entry.run.global_batch, timed_steps + entry.model.warmup_steps);
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
    // Unbound, as under the other launchers: else Gloo's threads would share the rank's only core.
    return {plan.launchers.at("mpirun"),
            "--oversubscribe",
            "--bind-to",
            "none",
            "--allow-run-as-root",
            "-np",
            ranks};
  }
  return run.launcher == "srun" ? srun_command(run, plan) : std::vector<std::string>();
}

std::vector<std::string> command_line(const Entry& entry, const Plan& plan, const Length& length,
                                      const std::string& folder) {
  const Run& run = entry.run;
  const bool is_python = plan.pythons.contains(run.stage);
  std::vector<std::string> argv = launcher_command(run, plan);
  const auto append = [&argv](const std::vector<std::string>& more) {
    argv.insert(argv.end(), more.begin(), more.end());
  };
  if (is_python) {
    append({plan.pythons.at(run.stage), plan.settings.peers_dir + "/" + run.stage + ".py",
            "--variant", run.variant});
  } else {
    append({plan.settings.stage_dir + "/" +
            (run.kind == "peer" ? "peer_" + run.stage : run.program())});
  }
  // Saves only at the end, because training is measured.
  const std::string epochs = std::to_string(length.epochs);
  append({epochs, epochs, "--global-batch", std::to_string(length.global_batch), "--layers",
          fmt::format("{}", fmt::join(run.layers, ",")), "--dataset-size",
          std::to_string(length.dataset_size)});
  if (entry.start == Start::kReplicas || entry.start == Start::kSpawn) {
    append({"--nprocs", std::to_string(run.world_size)});
  }
  append({"--threads", std::to_string(run.threads), "--seed", std::to_string(plan.settings.seed),
          "--device", run.device});
  if (!is_python) {
    append({"--quiet", "--resume", "never", "--snapshot", folder + "/snapshot.safetensors"});
    if (run.backend != "none") {
      append({"--backend", run.backend});
    }
  }
  if (run.kind == kNoCommunication) {
    append({"--no-communication"});
  }
  append({"--metrics", folder + "/metrics.jsonl"});
  return argv;
}

std::string shell_line(const std::vector<std::string>& words) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  std::string line;
  for (const std::string& word : words) {
    const bool is_plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    line += (line.empty() ? "" : " ") + (is_plain ? word : "'" + word + "'");
  }
  return line;
}

}  // namespace ddp::bench
