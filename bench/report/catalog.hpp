// bench/report/catalog.hpp - the models, programs and peers that bench knows by name, and the ways
// of gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddp::bench {

/// The program that everything is compared with.
inline constexpr const char* kBaseline = "01_single_gpu";
/// The DDP program, whose step the launchers' programs run too.
inline constexpr const char* kDistributed = "03_ddp_spawn";
/// The only one whose ranks may be on several nodes.
inline constexpr const char* kMultinode = "05_multinode";

inline constexpr std::int64_t kLargestWidth = 1'000'000;  // or batch

/// What is trained.
struct Workload {
  std::string name;  ///< "T", "digits"
  std::string description;  ///< for people
  std::int64_t batch = 0;  ///< samples per rank, or of one process
  bool synthetic = true;  ///< its size can be chosen; else a dataset of that name
  std::vector<std::int64_t> layers;  ///< features of input, hidden layers, output

  std::vector<std::string> stage_options() const;
};

const std::vector<Workload>& known_workloads();
/// Also "64-256-256-10@32": the widths of all layers, and the batch; nullptr for anything else.
const Workload* find_workload(const std::string& name);
/// For people, with the batch; empty for a name that is not known.
std::string workload_description(const std::string& name);

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
  Start start = Start::kAlone;
};

/// The baseline first.
const std::vector<StageProgram>& known_programs();

/// One way in which a peer can be set up.
struct PeerVariant {
  std::string peer;  ///< "pytorch"
  std::string variant;  ///< what --variant is given
  bool one_process = false;  ///< for world size 1, else for more
  std::string source;  ///< what trains, in bench/peers
  std::string device = "";  ///< the only one that it has; empty: any
  Start start = Start::kSpawn;
  bool built_here = false;  ///< a program beside the stages, for each of their backends
};

const std::vector<PeerVariant>& known_peers();

/// How gradients travel between processes, as the stages' options name it.
struct Gradients {
  double bucket_mib = 25;
  std::string compression = "none";  ///< "none", "bf16", "fp16"
  bool shard_optimizer = false;

  /// "/bucket:4/bf16/sharded": what is not the default. For a name.
  std::string suffix() const;
};

}  // namespace ddp::bench
