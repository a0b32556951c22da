// bench/catalog.hpp - models, and the table of programs.
#pragma once

#include "bench/settings.hpp"

namespace ddp::bench {

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

/// All models, the one with the most arithmetic last.
const std::vector<Model>& known_models();
inline constexpr const char* kDefaultModels = "T,M";

enum class LaunchKind {
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
  Sizes sizes = Sizes::kLargest;
  Models models = Models::kHeaviest;
  Times times = Times::kWithFull;
  std::string backend = "";  ///< on CPUs; empty: the default
  std::string launcher = "";  ///< the only launcher, if it is installed
  std::string peers = "";  ///< takes part with one of these --peers; empty: always
  LaunchKind launch = LaunchKind::kAlone;  ///< of stages by stages.list
  bool on_gpus = true;
  std::vector<std::string> lacks = {};  ///< words of stages.list
  std::string command = "";  ///< of --program, which has no row in the table

  /// True for another framework's program, in Python. See bench/peers/README.md.
  bool is_peer() const { return peers == stage; }
  bool has(const std::string& word) const { return !contains(lacks, word); }
  std::string program() const { return variant == "main" ? stage : stage + "_" + variant; }
  /// True if `word` is the program's name or the number of its stage. A number does not
  /// select programs without autograd, because their step differs.
  bool is_named(const std::string& word) const {
    return word == program() || (has("autograd") && word == program().substr(0, 2));
  }
};
const std::vector<PlanRow>& known_rows();

}  // namespace ddp::bench
