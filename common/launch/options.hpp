// common/launch/options.hpp - everything a stage can be told on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp {

/// Who starts a program's processes. It decides which options exist and what the default world is.
enum class Launch {
  kAlone,  ///< stages 01 and 02: one process for all devices
  kSpawn,  ///< stage 03: the program starts one process per device itself
  kLauncher,  ///< stages 04 and 05: torchrun, mpirun, srun or HTCondor
};

/// DeviceOptions::threads of `--threads auto`, until run_main() settles it.
inline constexpr int kAutomaticThreads = 0;

/// Upper limit for a world size; larger values are typing errors.
inline constexpr int kMaxWorldSize = 1 << 17;

struct TrainOptions {
  int64_t total_epochs = 0;
  int64_t save_every = 0;  ///< epochs between snapshots
  /// Samples per process and step. `train` gets it with --global-batch resolved.
  int64_t batch_size = 32;
  std::optional<int64_t> global_batch;  ///< samples per step over all processes
  std::string optimizer = "sgd";  ///< "sgd", "momentum", "adam" or "adamw"
  std::optional<double> learning_rate;  ///< none: the optimizer's default
  bool deterministic = false;
};

/// The defaults are the official tutorial's workload: 2048 samples of 20 features, a linear layer.
struct DataOptions {
  std::string dataset = "synthetic";  ///< or "digits", "fashion-mnist", a path of .safetensors
  std::string data_dir;  ///< folder with the data files; empty: where the dataset is installed
  int64_t dataset_size = 2048;  ///< training samples, synthetic only
  std::vector<int64_t> hidden;  ///< widths of the hidden layers; empty: the dataset's default
  std::vector<int64_t> layers;  ///< all widths, synthetic only; empty: the dataset's own shape
  uint64_t seed = 42;  ///< weights, data and order; the same on every rank
};

struct DeviceOptions {
  std::string device = "auto";  ///< "auto", "cpu" or "cuda"
  std::vector<int> devices;  ///< CUDA device indices to use; empty: all
  std::optional<int> nprocs;  ///< stages 02 and 03: replicas or processes
  int threads = 1;  ///< compute threads of each rank, in stage 02 of each replica
  std::string backend = "auto";  ///< "auto", "nccl", "nccl-legacy", "gloo", "mpi" or "shm"
  double bucket_mib = 25;  ///< size of the groups in which gradients are all-reduced
  double timeout_seconds = 600;  ///< for the rendezvous and for every collective
  std::string interface;  ///< network interface for the collectives; empty: the one to rank 0
  bool no_communication = false;  ///< measuring only: gradients are not exchanged
};

/// Explicit identity: overrides what a launcher says.
struct IdentityOptions {
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::optional<int> world_size;
  std::optional<int> local_world_size;
  std::string master_addr;
  std::optional<int> master_port;
};

struct OutputOptions {
  std::string snapshot;  ///< default "<program>.safetensors"
  std::string resume = "restart";  ///< "restart", "auto" or "never"
  std::string metrics;  ///< JSON lines file; empty: none
  std::string trace;  ///< Chrome trace, one file a rank; empty: none
  bool verbose = false;
  bool quiet = false;
};

struct Options : TrainOptions, DataOptions, DeviceOptions, IdentityOptions, OutputOptions {
  std::string program;  ///< base name of the executable, "01_single_gpu"
  Launch launch = Launch::kAlone;
  bool graph = false;  ///< 03_ddp_spawn_fused: --graph
  bool find_batch = false;  ///< 04_ddp_launcher_auto_batch: --batch-size auto
  std::optional<int64_t> memory_limit_bytes;  ///< 04_ddp_launcher_auto_batch: --memory-limit
};

/// Options that only one program has.
struct ExtraOptions {
  bool graph = false;  ///< --graph
  bool batch_finder = false;  ///< --batch-size auto and --memory-limit
};

/// Base name of the running executable, for messages and default file names.
std::string program_name();

/// Parses `argv`. Dashes and underscores in option names are equal.
/// @throws Answered after --help and --version
/// @throws UsageError naming the option: unknown, malformed, out of range or not of this program
Options parse_options(int argc, const char* const* argv, Launch launch,
                      const ExtraOptions& extra = {});

/// Samples per process and step: --global-batch divided by `world_size`, else --batch-size.
/// @throws UsageError unless --global-batch is divisible by `world_size`
int64_t resolve_batch_size(const TrainOptions& options, int world_size);

/// Samples per step over all processes, of options with a resolved batch_size.
/// @throws UsageError if the product is too large
int64_t global_batch_of(const TrainOptions& options, int world_size);

}  // namespace ddp
