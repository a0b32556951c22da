#include "bench/run/configuration.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

#include "bench/run/plan.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

/// The shortest text that is this number.
std::string format_exactly(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : "?";
}

int environment_number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  const int number = text == nullptr ? 0 : std::atoi(text);
  return number > 0 ? number : otherwise;
}

/// srun and its options, as in slurm/05_multinode.sh.
std::vector<std::string> srun_command(const Configuration& configuration, const Plan& plan) {
  const int per_node = configuration.world_size / configuration.nodes;
  // The first nodes of the job: the batch script runs on the first, and so must rank 0, which
  // writes the metrics. A step starts in bench's temporary folder otherwise, which is only there.
  std::vector<std::string> argv = {plan.launchers.at("srun").path,
                                   "--relative=0",
                                   "--nodes=" + std::to_string(configuration.nodes),
                                   "--ntasks=" + std::to_string(configuration.world_size),
                                   "--ntasks-per-node=" + std::to_string(per_node),
                                   "--kill-on-bad-exit=1",
                                   "--chdir=" + plan.stage_dir};
  const int asked = environment_number("SLURM_CPUS_PER_TASK", 0);
  const int cpus_on_node = environment_number("SLURM_CPUS_ON_NODE", per_node * std::max(asked, 1));
  if (asked > 0) {
    // GPUs may ask for more tasks than the job has CPUs for.
    argv.push_back("--cpus-per-task=" +
                   std::to_string(std::clamp(cpus_on_node / per_node, 1, asked)));
  }
  if (per_node > cpus_on_node) {
    argv.push_back("--overcommit");
  }
  if (configuration.device == "cuda") {
    argv.push_back("--gpu-bind=none");  // the local rank picks the GPU
  }
  return argv;
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
  if (configuration.launcher == "srun") {
    return srun_command(configuration, plan);
  }
  return {};
}

std::string Configuration::title() const {
  std::string text = program.name;
  text += role == Role::kPeer ? " " + program.variant : "";
  text += speedup == "none" ? "" : " " + speedup;
  std::string more = gradients.suffix();
  std::replace(more.begin(), more.end(), '/', ' ');
  return text + more;
}

std::string Gradients::suffix() const {
  std::string text;
  if (bucket_mib != Gradients().bucket_mib) {
    text += "/bucket:" + format_exactly(bucket_mib);
  }
  text += compression == "none" ? "" : "/" + compression;
  return text + (shard_optimizer ? "/sharded" : "");
}

std::string Configuration::original_name() const {
  std::string text = workload.name + "/" + scaling + "/" + program.name;
  if (role == Role::kPeer) {
    text += "_" + program.variant;
  }
  for (const std::string& part : {launcher, backend}) {
    text += part == "none" ? "" : "/" + part;
  }
  text += speedup == "none" ? "" : "/" + speedup;
  text += gradients.suffix();
  text += nodes == 1 ? "" : "/nodes:" + std::to_string(nodes);
  return text + "/ranks:" + std::to_string(world_size);
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
                                      std::int64_t global_batch, const RunLength& length,
                                      std::uint64_t seed, const std::string& metrics_path,
                                      const std::string& snapshot_path) {
  std::vector<std::string> argv = launcher_command(configuration, plan);
  const auto add = [&](std::initializer_list<std::string> parts) {
    argv.insert(argv.end(), parts);
  };
  if (configuration.role == Role::kPeer) {
    const std::string& peer = configuration.program.name;
    if (const auto python = plan.peer_pythons.find(peer); python != plan.peer_pythons.end()) {
      add({python->second, (fs::path(plan.peers_dir) / (peer + ".py")).string()});
    } else {
      add({(fs::path(plan.stage_dir) / ("peer_" + peer)).string()});
    }
  } else {
    add({(fs::path(plan.stage_dir) / configuration.program.name).string()});
  }
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
    add({"--nprocs", std::to_string(configuration.world_size)});
  }
  add({"--seed", std::to_string(seed), "--device", configuration.device});
  if (configuration.backend != "none") {
    add({"--backend", configuration.backend});
  }
  if (configuration.speedup != "none") {
    add({"--speedup", configuration.speedup});
  }
  const Gradients& gradients = configuration.gradients;
  if (gradients.bucket_mib != Gradients().bucket_mib) {
    add({"--bucket-mib", format_exactly(gradients.bucket_mib)});
  }
  if (gradients.compression != "none") {
    add({"--gradient-compression", gradients.compression});
  }
  if (gradients.shard_optimizer) {
    add({"--shard-optimizer"});
  }
  if (configuration.role == Role::kPeer) {
    add({"--variant", configuration.program.variant});
  }
  if (configuration.role == Role::kNoCommunication) {
    add({"--no-communication"});
  }
  add({"--resume", "never", "--quiet", "--snapshot", snapshot_path, "--metrics", metrics_path});
  return argv;
}

}  // namespace ddp::bench
