// bench/catalog.hpp - models, stages and peers by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// Program that all others are compared with.
inline constexpr const char* kBaseline = "01_single_gpu";
/// Program without autograd, for comparison with frameworks that compile a step.
inline constexpr const char* kFused = "03_ddp_spawn_fused";

/// Training task: a multilayer perceptron on synthetic data.
struct Model {
  std::string name;  ///< "M"
  std::vector<std::int64_t> layers;  ///< widths: input, hidden layers, output
  std::int64_t batch = 0;  ///< samples per rank

  std::int64_t parameters() const;
  /// Multiplications and additions for forward and backward of a sample.
  double flop_per_sample() const;
  /// Timed steps of a run: about 0.12 s on a core of a recent processor. The number is the same for
  /// all programs.
  std::int64_t timed_steps() const;
  /// Warm-up steps before the timed steps.
  std::int64_t warmup_steps() const;
};

/// T, S, M or L. @throws UsageError for any other name
const Model& find_model(const std::string& name);

/// Way in which a program's processes are started.
enum class Start {
  kAlone,  ///< one process
  kReplicas,  ///< one process, --nprocs replicas of the model
  kSpawn,  ///< the program itself starts --nprocs processes
  kLauncher,  ///< torchrun, mpirun or srun
};

/// Program of a stage.
struct Program {
  std::string name;  ///< "03_ddp_spawn_by_hand"
  std::string stage;  ///< its folder, "03_ddp_spawn"
  std::string variant;  ///< "main", or the other source in the folder
  Start start = Start::kAlone;

  /// True if `word` is its name or the number of its stage.
  bool is_named(const std::string& word) const { return word == name || word == name.substr(0, 2); }
};
const std::vector<Program>& known_programs();
/// @throws std::out_of_range for an unknown name
const Program& find_program(const std::string& name);

/// Variant of another framework. See bench/peers/README.md.
struct Peer {
  std::string name;  ///< "pytorch"
  std::string variant;  ///< "tuned"
  Start start = Start::kSpawn;  ///< kAlone: one process with all threads
  bool on_gpus = true;
  bool slow_start = false;  ///< takes tens of seconds to start
  std::string backend = "";  ///< empty: PyTorch's default; "auto": the stages' default
};
/// Peer that is built with the stages; the other peers are Python programs.
inline constexpr const char* kBuiltPeer = "c10d";
const std::vector<Peer>& known_peers();

}  // namespace ddp::bench
