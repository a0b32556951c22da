// bench/configuration.hpp - what is compared: stages x launchers x world sizes on which workload.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/settings.hpp"

namespace ddp::bench {

/// What is trained.
struct Workload {
  std::string name;  ///< "T", "digits"
  std::string description;  ///< for people
  std::int64_t batch = 0;  ///< samples per rank, or of one process
  std::vector<std::string> stage_options;
  bool synthetic = true;  ///< its size can be chosen
};

/// Who makes a program's processes.
enum class Start {
  kAlone,  ///< one process
  kReplicas,  ///< one process with --nprocs replicas of the model
  kSpawn,  ///< the program itself makes --nprocs processes
  kLauncher,  ///< torchrun or mpirun does
};

struct StageProgram {
  std::string name;  ///< of the executable
  std::string stage;  ///< its folder
  std::string variant;  ///< "main", or the other source in the folder
  Start start;
  bool by_default;  ///< absence is worth a word
};

/// A launcher that was found on this machine.
struct Launcher {
  std::string path;
  std::optional<std::string> version;
};

/// One row of the report.
struct Configuration {
  Workload workload;
  StageProgram program;
  std::string launcher = "none";  ///< "none", "spawn", "torchrun" or "mpirun"
  std::string backend = "none";  ///< "none" or what --backend is given
  std::string device = "cpu";
  std::string speedup = "none";
  std::string scaling = "weak";
  int world_size = 1;  ///< processes, or replicas in stage 02
  std::int64_t global_batch = 0;  ///< samples per step, over all ranks
  std::int64_t parity_batch = 0;  ///< the same for all world sizes

  /// "T/weak/03_ddp_spawn/spawn/gloo/ranks:2", unique.
  std::string name() const;
  /// Processes that write metrics.
  int processes() const;
  bool is_baseline() const { return program.start == Start::kAlone; }
};

/// Something that a reader may miss in the report, and why it is not there.
struct NotRun {
  std::string what;
  std::string reason;
};

struct Plan {
  std::vector<Configuration> configurations;
  std::vector<NotRun> not_run;
  std::map<std::string, Launcher> launchers;  ///< by name
  std::string stage_dir;
  std::vector<std::string> notes;  ///< decisions that the reader should know
};

/// Finds programs and launchers, starts nothing.
/// @throws UsageError if what was asked for by name is not there
Plan make_plan(const Settings& settings);

/// How long one run of a configuration is.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t dataset_size = 0;  ///< 0: the dataset's own
};

/// The whole command, launcher included.
std::vector<std::string> command_line(const Configuration& configuration, const Plan& plan,
                                      std::int64_t global_batch, const RunLength& length,
                                      std::uint64_t seed, const std::string& metrics_path,
                                      const std::string& snapshot_path);

}  // namespace ddp::bench
