// bench/run/configuration.hpp - one thing that is run: a program, a launcher, a world size, a
// workload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// What is trained.
struct Workload {
  std::string name;  ///< "T", "digits"
  std::string description;  ///< for people
  std::int64_t batch = 0;  ///< samples per rank, or of one process
  std::vector<std::string> stage_options;
  bool synthetic = true;  ///< its size can be chosen
  std::vector<std::int64_t> layers;  ///< features of input, hidden layers, output
};

/// Who makes a program's processes.
enum class Start {
  kAlone,  ///< one process
  kReplicas,  ///< one process with --nprocs replicas of the model
  kSpawn,  ///< the program itself makes --nprocs processes
  kLauncher,  ///< torchrun, mpirun or srun does
};

struct StageProgram {
  std::string name;  ///< of the executable, or of the peer
  std::string stage;  ///< its folder
  std::string variant;  ///< "main", or the other source in the folder
  Start start;
  bool by_default;  ///< absence is worth a word
};

/// How gradients travel between processes, as the stages' options name it.
struct Gradients {
  double bucket_mib = 25;
  std::string compression = "none";  ///< "none", "bf16", "fp16"
  bool shard_optimizer = false;

  bool operator==(const Gradients&) const = default;
  /// "/bucket:4/bf16/sharded": what is not the default. For a name.
  std::string suffix() const;
};

/// Why something is run.
enum class Role {
  kStage,
  kPeer,  ///< another framework's program, see bench/peers/README.md
  kControl,  ///< the same command as another configuration: how far apart are equal things?
  kNoCommunication,  ///< another configuration without gradient exchange; no row of its own
};

/// One row of the report, or what helps to understand one.
struct Configuration {
  Workload workload;
  StageProgram program;
  Role role = Role::kStage;
  std::string launcher = "none";  ///< "none", "spawn", "torchrun", "mpirun" or "srun"
  std::string backend = "none";  ///< "none" or what --backend is given
  std::string device = "cpu";
  std::string speedup = "none";
  Gradients gradients;
  std::string scaling = "weak";
  int nodes = 1;
  int world_size = 1;  ///< processes, or replicas in stage 02
  std::int64_t global_batch = 0;  ///< samples per step, over all ranks
  std::int64_t parity_batch = 0;  ///< the same for all world sizes

  /// "T/weak/03_ddp_spawn/spawn/gloo/ranks:2", unique. A control's ends in "/control".
  std::string name() const;
  /// The name without what the role appends.
  std::string original_name() const;
  /// The program with its variant and speed-up, for readers: "03_ddp_spawn fused", "pytorch tuned".
  std::string title() const;
  /// Processes that write metrics.
  int processes() const;
  bool is_baseline() const { return role == Role::kStage && program.start == Start::kAlone; }
  /// Gradients are exchanged between processes.
  bool communicates() const { return processes() > 1 && role != Role::kNoCommunication; }
};

/// How long one run of a configuration is.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t dataset_size = 0;  ///< 0: the dataset's own
};

struct Plan;

/// What starts the processes, without the program. Empty if the program does that itself.
std::vector<std::string> launcher_command(const Configuration& configuration, const Plan& plan);

/// The whole command, launcher included.
std::vector<std::string> command_line(const Configuration& configuration, const Plan& plan,
                                      std::int64_t global_batch, const RunLength& length,
                                      std::uint64_t seed, const std::string& metrics_path,
                                      const std::string& snapshot_path);

}  // namespace ddp::bench
