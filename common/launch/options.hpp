// common/launch/options.hpp - everything a stage can be told on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp {

/// Who starts a program's processes. It decides which options exist and what the default world is.
enum class Launch {
  kAlone,  ///< stages 01 and 02: one process, whatever the number of devices
  kSpawn,  ///< stage 03: the program starts one process per device itself
  kLauncher,  ///< stages 04 and 05: torchrun, mpirun, srun or HTCondor
};

/// How much longer than the snapshot's own the names of files beside it are:
/// "<snapshot>.prev.tmp.0123456789abcdef" is the longest.
inline constexpr int kSnapshotSuffixBytes = 26;

/// Options::threads of `--threads auto`, until with_cpu_share() settles it.
inline constexpr int kAutomaticThreads = 0;

/// More ranks than any job has: what is larger is a slip of the finger or no number of ranks, and
/// would have every rank write a list of them first.
inline constexpr int kMaxWorldSize = 1 << 17;

/// The defaults are the official tutorial's workload: 2048 samples of 20 features, a linear layer.
struct Options {
  std::string program;  ///< base name of the executable, "01_single_gpu"
  Launch launch = Launch::kAlone;

  // Training.
  int64_t total_epochs = 0;
  int64_t save_every = 0;  ///< epochs between snapshots
  /// Samples per process and micro-batch; train() gets it with --global-batch resolved.
  int64_t batch_per_rank = 32;
  bool find_batch = false;  ///< --batch-size auto: the largest that fits becomes batch_per_rank
  /// Of the process, with --batch-size auto on a CPU; none: what ulimit and the cgroup leave.
  std::optional<int64_t> memory_limit_bytes;
  std::string scale_lr = "none";  ///< "none", "linear" or "sqrt": what a found batch does to --lr
  /// Samples per optimizer step, over all ranks and micro-batches.
  std::optional<int64_t> global_batch;
  int64_t accumulate = 1;  ///< micro-batches per optimizer step
  std::string optimizer = "sgd";  ///< "sgd", "momentum", "adam" or "adamw"
  /// None: the optimizer's default, see resolve_learning_rate().
  std::optional<double> learning_rate;
  std::string lr_schedule;  ///< "constant" or "linear"; empty: the dataset's default
  uint64_t seed = 42;  ///< weights, data and order; the same on every rank
  bool deterministic = false;

  // Data and model.
  std::string dataset =
      "synthetic";  ///< or "digits", "fashion-mnist", a path of a .safetensors file
  std::string data_dir;  ///< folder with the data files; empty: where the dataset is installed
  int64_t dataset_size = 2048;  ///< training samples, synthetic only
  std::vector<int64_t> hidden;  ///< widths of the hidden layers; empty: the dataset's default
  std::vector<int64_t> layers;  ///< all widths, synthetic only; empty: the dataset's own shape
  std::string sampler = "distributed";  ///< "distributed", "padded" or "none"
  /// Each rank prints the first samples of an epoch, the model the input shape on each device, and
  /// each rank at the end how busy it was; no bar.
  bool verbose = false;

  // Devices and processes.
  std::string device = "auto";  ///< "auto", "cpu" or "cuda"
  std::vector<int> devices;  ///< CUDA device indices to use; empty: all
  std::optional<int> nprocs;  ///< stages 02 and 03: replicas or processes
  int threads = 1;  ///< compute threads of each rank (of each replica in stage 02)
  std::string bind = "none";  ///< "none" or "cores"
  std::string backend = "auto";  ///< as --help lists
  std::string speedup = "none";  ///< "none", "fused" or "graph", see FusedStep
  double bucket_mib = 25;  ///< gradients that are all-reduced together, see GradientBuckets
  std::string gradient_compression = "none";  ///< "none", "bf16" or "fp16"
  bool shard_optimizer = false;  ///< each rank keeps and computes 1/n of the optimizer
  double timeout_seconds = 120;  ///< for rendezvous and for every collective

  // Explicit identity: overrides what a launcher says.
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::optional<int> world_size;
  std::optional<int> local_world_size;
  std::string master_addr;
  std::optional<int> master_port;
  std::string interface;  ///< network interface for the collectives; empty: see --help

  // Output.
  /// Default "<program>.safetensors". What train() gets is no symbolic link.
  std::string snapshot;
  std::string resume = "restart";  ///< "restart", "auto" or "never"
  std::string metrics;  ///< JSON lines file; empty: none
  std::string trace;  ///< timeline of the last steps, a Chrome trace; empty: none
  std::string tensorboard;  ///< folder of TensorBoard's event files; empty: none
  bool check_finite = false;  ///< every rank looks at its loss and gradients in every step
  int64_t check_weights_every = 0;  ///< steps after which ranks compare their weights; 0: never
  bool no_communication = false;  ///< measuring only: gradients are not exchanged
  std::string inject = "none";  ///< a fault on purpose, as --help lists
  bool quiet = false;
  bool dump_env = false;  ///< print the launch environment and exit
  bool json = false;  ///< with --dump-env: as JSON
};

/// Base name of the running executable, for messages and default file names.
std::string program_name(const char* argv0);

/// Parses `argv`. Dashes and underscores in option names are equal.
/// @throws Answered after --help and --version
/// @throws UsageError naming the option: unknown, malformed, out of range or not of this program
Options parse_options(int argc, const char* const* argv, Launch launch);

/// @throws UsageError unless --global-batch is divisible by world_size * accumulate
/// @return samples per process and micro-batch
int64_t resolve_batch_per_rank(const Options& options, int world_size);

/// Samples per optimizer step over all ranks and micro-batches.
int64_t resolve_global_batch(const Options& options, int world_size);

}  // namespace ddp
