// bench/run/configuration.hpp - one thing to run: a program, a launcher, a world size, a workload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/report/catalog.hpp"

namespace ddp::bench {

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
  int threads = 1;  ///< of each process
  std::int64_t global_batch = 0;  ///< samples per step, over all ranks
  std::int64_t parity_batch = 0;  ///< the same for all world sizes
  int repetitions = 1;  ///< timed runs; 0: only its weights are compared
  std::vector<std::string> more_options;  ///< for the program

  /// "T/weak/03_ddp_spawn/spawn/gloo/ranks:2", unique. A control's ends in "/control".
  std::string name() const;
  /// The name without what the role appends.
  std::string original_name() const;
  /// Processes that write metrics.
  int processes() const;
  bool is_baseline() const {
    return role == Role::kStage && program.start == Start::kAlone && threads == 1;
  }
  bool is_timed() const { return repetitions > 0; }
  /// Whether it runs in that block. All begin with the first one, so that any two have pairs, also
  /// if the last blocks are left out.
  bool runs_in(int block) const { return block < repetitions; }
  /// It has a parity run of its own.
  bool is_original() const { return role == Role::kStage || role == Role::kPeer; }
  /// Gradients are exchanged between processes.
  bool communicates() const { return processes() > 1 && role != Role::kNoCommunication; }
};

/// How much one run of a configuration trains.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t global_batch = 0;  ///< samples per step, over all ranks
  std::int64_t dataset_size = 0;  ///< 0: the dataset's own
  std::int64_t timed_steps = 0;  ///< at least, that are no warm-up; 0: what half a run leaves
};

struct Plan;

/// What starts the processes, without the program. Empty if the program does that itself.
std::vector<std::string> launcher_command(const Configuration& configuration, const Plan& plan);

/// The whole command, launcher included.
std::vector<std::string> command_line(const Configuration& configuration, const Plan& plan,
                                      const RunLength& length, const std::string& metrics_path,
                                      const std::string& snapshot_path);

}  // namespace ddp::bench
