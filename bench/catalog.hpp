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
  /// Steps of one run that are timed: about 0.12 s on a core of a recent processor. The same for
  /// every program, so that all of them give equally many samples.
  std::int64_t timed_steps() const;
  /// Steps before the timed ones, which count as warm-up.
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
  std::string name;  ///< of the executable, "03_ddp_spawn_by_hand"
  std::string stage;  ///< its folder, "03_ddp_spawn"
  std::string variant;  ///< "main", or the other source in the folder
  Start start = Start::kAlone;
  std::vector<std::string> options = {};  ///< that it always gets
  std::string executable = name;
};
const std::vector<Program>& known_programs();
/// @throws std::out_of_range for a name that is not there
const Program& find_program(const std::string& name);

/// Another framework's program, with one --variant. See bench/peers/README.md.
struct Peer {
  std::string name;  ///< "pytorch"
  std::string variant;  ///< "tuned"
  Start start = Start::kSpawn;
  bool one_process = false;  ///< it takes part with one process and all threads too
  bool several = true;  ///< it takes part with several processes, replicas or devices
  bool on_gpus = true;
  bool built_here = false;  ///< the program peer_NAME beside the stages; else Python
  bool slow_start = false;  ///< tens of seconds
};
const std::vector<Peer>& known_peers();

}  // namespace ddp::bench
