#include "bench/run/configuration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

#include "bench/report/format.hpp"
#include "bench/run/plan.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"

namespace ddp::bench {
namespace {

int environment_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  const int number = text == nullptr ? 0 : std::atoi(text);
  return number > 0 ? number : otherwise;
}

/// The first `count` nodes of the job, for srun. Its --relative=0 names none: while an earlier step
/// still ends on the first node, it would take another that is idle.
std::string first_nodes(int count) {
  const char* const list = std::getenv("SLURM_JOB_NODELIST");
  std::vector<std::string> nodes;
  if (list != nullptr) {
    nodes = expand_node_list(list);
  }
  if (std::ssize(nodes) < count) {
    throw UsageError(
        fmt::format("SLURM_JOB_NODELIST: got {} nodes, expected at least {}", nodes.size(), count));
  }
  nodes.resize(static_cast<size_t>(count));
  return fmt::format("{}", fmt::join(nodes, ","));
}

/// srun and its options, as in slurm/05_multinode.sh.
std::vector<std::string> srun_command(const Configuration& configuration, const Plan& plan) {
  const int per_node = configuration.world_size / configuration.nodes;
  // The first nodes of the job: the batch script runs on the first, and so must rank 0, which
  // writes the metrics. A step starts in bench's temporary folder otherwise, which is only there.
  std::vector<std::string> argv = {plan.launchers.at("srun").path,
                                   "--nodelist=" + first_nodes(configuration.nodes),
                                   fmt::format("--nodes={}", configuration.nodes),
                                   fmt::format("--ntasks={}", configuration.world_size),
                                   fmt::format("--ntasks-per-node={}", per_node),
                                   "--kill-on-bad-exit=1",
                                   "--chdir=" + plan.settings.stage_dir};
  const int asked = environment_number("SLURM_CPUS_PER_TASK", 0);
  const int cpus_on_node = environment_number("SLURM_CPUS_ON_NODE", per_node * std::max(asked, 1));
  if (asked > 0) {
    // GPUs may ask for more tasks than the job has CPUs for.
    argv.push_back(
        fmt::format("--cpus-per-task={}", std::clamp(cpus_on_node / per_node, 1, asked)));
  }
  if (per_node > cpus_on_node) {
    argv.push_back("--overcommit");
  }
  return argv;
}

/// The program of a stage or a peer, without its arguments.
std::vector<std::string> program_command(const Configuration& configuration, const Plan& plan) {
  const std::string& name = configuration.program.name;
  if (configuration.role != Role::kPeer) {
    return {plan.program_path(name)};
  }
  if (const auto python = plan.peer_pythons.find(name); python != plan.peer_pythons.end()) {
    return {python->second,
            (std::filesystem::path(plan.settings.peers_dir) / (name + ".py")).string()};
  }
  return {plan.program_path("peer_" + name)};
}

}  // namespace

std::vector<std::string> launcher_command(const Configuration& configuration, const Plan& plan) {
  const std::string ranks = std::to_string(configuration.world_size);
  if (configuration.launcher == "torchrun") {
    return {plan.launchers.at("torchrun").path, "--standalone", "--nproc_per_node=" + ranks,
            "--no-python"};
  }
  if (configuration.launcher == "mpirun") {
    // Unbound, as the other launchers start them: Gloo's threads would share the rank's only core.
    std::vector<std::string> argv = {plan.launchers.at("mpirun").path, "--oversubscribe",
                                     "--bind-to", "none"};
    if (geteuid() == 0) {
      argv.push_back("--allow-run-as-root");
    }
    argv.insert(argv.end(), {"-np", ranks});
    return argv;
  }
  return configuration.launcher == "srun" ? srun_command(configuration, plan)
                                          : std::vector<std::string>();
}

std::string Configuration::original_name() const {
  std::string text = fmt::format("{}/{}/{}", workload.name, scaling, program.name);
  text += role == Role::kPeer ? "_" + program.variant : "";
  for (const std::string& part : {launcher, backend, speedup}) {
    text += part == "none" ? "" : "/" + part;
  }
  text += gradients.suffix() + (nodes == 1 ? "" : fmt::format("/nodes:{}", nodes));
  text += threads == 1 ? "" : fmt::format("/threads:{}", threads);
  return text + fmt::format("/ranks:{}", world_size);
}

std::string Configuration::name() const {
  return original_name() + (role == Role::kControl           ? "/control"
                            : role == Role::kNoCommunication ? "/no_communication"
                                                             : "");
}

int Configuration::processes() const {
  const bool one = program.start == Start::kAlone || program.start == Start::kReplicas;
  return one ? 1 : world_size;
}

std::vector<std::string> command_line(const Configuration& configuration, const Plan& plan,
                                      const RunLength& length, const std::string& metrics_path,
                                      const std::string& snapshot_path) {
  std::vector<std::string> argv = launcher_command(configuration, plan);
  const auto append = [&](const std::vector<std::string>& parts) {
    argv.insert(argv.end(), parts.begin(), parts.end());
  };
  const auto add = [&](bool wanted, std::initializer_list<std::string> parts) {
    argv.insert(argv.end(), parts.begin(), wanted ? parts.end() : parts.begin());
  };
  const Start start = configuration.program.start;
  const Gradients& gradients = configuration.gradients;
  append(program_command(configuration, plan));
  // No snapshot before the end: what is measured is training.
  const std::string epochs = std::to_string(length.epochs);
  append({epochs, epochs, "--global-batch", std::to_string(length.global_batch)});
  append(configuration.workload.stage_options());
  add(length.dataset_size > 0, {"--dataset-size", std::to_string(length.dataset_size)});
  add(start == Start::kReplicas || start == Start::kSpawn,
      {"--nprocs", std::to_string(configuration.world_size)});
  append({"--seed", std::to_string(plan.settings.seed), "--device", configuration.device});
  add(configuration.threads > 1, {"--threads", std::to_string(configuration.threads)});
  add(configuration.backend != "none", {"--backend", configuration.backend});
  add(configuration.speedup != "none", {"--speedup", configuration.speedup});
  add(gradients.bucket_mib != Gradients().bucket_mib,
      {"--bucket-mib", format_shortest(gradients.bucket_mib)});
  add(gradients.compression != "none", {"--gradient-compression", gradients.compression});
  add(gradients.shard_optimizer, {"--shard-optimizer"});
  add(configuration.role == Role::kPeer, {"--variant", configuration.program.variant});
  add(configuration.role == Role::kNoCommunication, {"--no-communication"});
  append(configuration.more_options);
  append({"--resume", "never", "--quiet", "--snapshot", snapshot_path, "--metrics", metrics_path});
  return argv;
}

}  // namespace ddp::bench
