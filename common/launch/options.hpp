// common/launch/options.hpp - options of the stages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp {

/// Way in which a program's processes are started. Options and the default world depend on it.
enum class Launch {
  kAlone,  ///< stages 01 and 02: one process for all devices
  kSpawn,  ///< stage 03: the program starts one process per device itself
  kLauncher,  ///< stages 04 and 05: torchrun, mpirun, srun or HTCondor
};

/// DeviceOptions::threads for `--threads auto`, until run_main() replaces it.
inline constexpr int kAutomaticThreads = 0;

/// Upper limit for a world size; larger values are typing errors.
inline constexpr int kMaxWorldSize = 1 << 17;

struct TrainOptions {
  int64_t total_epochs = 0;
  int64_t save_every = 0;  ///< epochs between snapshots
  /// Samples per process and step; in `train` --global-batch is resolved.
  int64_t batch_size = 32;
  std::optional<int64_t> global_batch;  ///< samples per step over all processes
  std::string optimizer = "sgd";  ///< "sgd", "momentum", "adam" or "adamw"
  std::optional<double> learning_rate;  ///< unset: the optimizer's default
  bool deterministic = false;
};

/// Defaults are the official tutorial's workload: 2048 samples of 20 features, a linear layer.
struct DataOptions {
  std::string dataset = "synthetic";  ///< or "digits", "fashion-mnist", a path of .safetensors
  std::string data_dir;  ///< folder with the data files; empty: the installed folder
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
  double bucket_mib = 25;  ///< size of the buckets of gradients
  double timeout_seconds = 600;  ///< limit for the rendezvous and for every collective
  std::string interface;  ///< network interface for the collectives; empty: the interface to rank 0
  bool no_communication = false;  ///< only for measuring: ranks do not sum gradients
};

/// Explicit identity, which overrides the launcher's.
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
  std::string metrics;  ///< file for JSON lines; empty: none
  std::string trace;  ///< Chrome trace, a file per rank; empty: none
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

/// Options of a single program.
struct ExtraOptions {
  bool graph = false;  ///< --graph
  bool batch_finder = false;  ///< --batch-size auto and --memory-limit
};

/// Base name of this program's executable, for messages and default file names.
std::string program_name();

/// Parses `argv`. Dashes and underscores in option names are equal.
/// @throws Answered after --help and --version
/// @throws UsageError naming an option that is unknown, malformed, out of range or not accepted
Options parse_options(int argc, const char* const* argv, Launch launch,
                      const ExtraOptions& extra = {});

/// Samples per process and step: --global-batch / `world_size` if it is given, else --batch-size.
/// @throws UsageError unless --global-batch is divisible by `world_size`
int64_t resolve_batch_size(const TrainOptions& options, int world_size);

/// Samples per step over all processes. `options` must have a resolved batch_size.
int64_t global_batch_of(const TrainOptions& options, int world_size);

}  // namespace ddp
