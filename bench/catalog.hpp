// bench/catalog.hpp - the models, stages and peers that bench knows by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// The program that all others are compared with.
inline constexpr const char* kBaseline = "01_single_gpu";
/// Without autograd, as frameworks that compile a step.
inline constexpr const char* kFused = "03_ddp_spawn_fused";

/// What is trained: a multilayer perceptron on synthetic data.
struct Model {
  std::string name;  ///< "M", or "64-256-256-10@32"
  std::vector<std::int64_t> layers;  ///< widths: input, hidden layers, output
  std::int64_t batch = 0;  ///< samples per rank

  std::int64_t parameters() const;
  /// Multiplications and additions in forward and backward of one sample.
  double flop_per_sample() const;
  /// Timed steps of one run: about 0.12 s on a core of a recent processor. The same for every
  /// program, so that all programs give equally many samples.
  std::int64_t timed_steps() const;
  /// Warm-up steps before the timed steps.
  std::int64_t warmup_steps() const;
};

/// T, S, M, L, or widths and batch such as "64-256-256-10@32".
/// @throws UsageError for any other name
Model find_model(const std::string& name);

/// Who starts a program's processes.
enum class Start {
  kAlone,  ///< one process
  kReplicas,  ///< one process, --nprocs replicas of the model
  kSpawn,  ///< the program itself starts --nprocs processes
  kLauncher,  ///< torchrun, mpirun or srun
};

/// A stage's program.
struct Program {
  std::string name;  ///< "03_ddp_spawn_by_hand"
  std::string stage;  ///< its folder, "03_ddp_spawn"
  std::string variant;  ///< "main", or the other source in the folder
  Start start = Start::kAlone;

  /// `word` is its name, or the number of its stage.
  bool is_named(const std::string& word) const { return word == name || word == name.substr(0, 2); }
};
const std::vector<Program>& known_programs();
/// @throws std::out_of_range for a name that is not there
const Program& find_program(const std::string& name);

/// One way in which another framework takes part. See bench/peers/README.md.
struct Peer {
  std::string name;  ///< "pytorch"
  std::string variant;  ///< "tuned"
  Start start = Start::kSpawn;  ///< kAlone: with all threads
  bool on_gpus = true;
  bool slow_start = false;  ///< takes tens of seconds to start
  std::string backend = "";  ///< empty: PyTorch's on this device; "auto": the stages'
};
/// The peer that is built beside the stages; the others are Python.
inline constexpr const char* kBuiltPeer = "c10d";
const std::vector<Peer>& known_peers();

}  // namespace ddp::bench
