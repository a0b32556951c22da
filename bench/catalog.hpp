// bench/catalog.hpp - models, and the table of programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// Program that all others are compared with.
inline constexpr const char* kBaseline = "01_single_gpu";
/// Program without autograd, for comparison with frameworks that compile a step.
inline constexpr const char* kFused = "03_ddp_spawn_fused";
/// Peer that is built with the stages; the other peers are Python programs.
inline constexpr const char* kBuiltPeer = "c10d";

/// Training task: a multilayer perceptron on synthetic data.
struct Model {
  std::string name;  ///< "M"
  std::vector<std::int64_t> layers;  ///< widths: input, hidden layers, output
  std::int64_t batch = 0;  ///< samples per rank
  // The same for all programs. On a core of a recent processor the warm-up takes 0.05 s, and at
  // least the stages' own 20 steps; the timed steps take 0.12 s.
  std::int64_t warmup_steps = 0;
  std::int64_t timed_steps = 0;

  std::int64_t parameters() const;
};

/// @param name "T", "S", "M" or "L"
const Model& find_model(const std::string& name);

/// Way in which a program's processes are started.
enum class Start {
  kAlone,  ///< one process
  kReplicas,  ///< one process, --nprocs replicas of the model
  kSpawn,  ///< the program itself starts --nprocs processes
  kLauncher,  ///< torchrun, mpirun or srun
};

enum class Sizes {
  kOne,
  kThreads,  ///< one rank, with as many threads as the largest world size
  kLargest,
  kSeveral,  ///< the largest, if it is not 1
  kAll,
};

/// kHeaviest: the model with the most arithmetic in a step, or each that --models names.
enum class Models { kEach, kHeaviest };

enum class Times {
  kRepeated,
  kOnce,  ///< another row times the same step, so this row only shows that the program works
  kWithFull,  ///< only with --full
  kSlow,  ///< takes tens of seconds to start
};

/// Row of the table of programs: what runs by default, or with --peers. If the user names stages,
/// launchers or backends, all rows without `peers` are candidates, with equal repetitions.
struct PlanRow {
  std::string stage;  ///< the program's folder "03_ddp_spawn", or the framework of a peer
  std::string variant;  ///< "main", the other source in the folder, or the peer's variant
  Start start;
  Sizes sizes;
  Models models;
  Times times;
  std::string backend = "";  ///< on CPUs; empty: the default
  std::string launcher = "";  ///< the only launcher, if it is installed
  std::string peers = "";  ///< takes part with one of these --peers; empty: always
  bool on_gpus = true;

  /// True for another framework's program. See bench/peers/README.md.
  bool is_peer() const { return peers == stage; }
  std::string program() const { return variant == "main" ? stage : stage + "_" + variant; }
};
const std::vector<PlanRow>& known_rows();

}  // namespace ddp::bench
