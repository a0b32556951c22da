// common/launch/options.hpp - options of the stages.
#pragma once

#include "common/device/hardware.hpp"
#include "common/meet/launch.hpp"

namespace ddp {

class OptionGroup;

/// Values of --optimizer, with the learning rate of each without --lr.
struct OptimizerKind {
  const char* name;
  double learning_rate;
};
inline constexpr OptimizerKind kOptimizers[] = {
    {"sgd", 0.1}, {"momentum", 0.02}, {"adam", 0.001}, {"adamw", 0.001}};

inline constexpr const char* kSynthetic = "synthetic";
/// Values of --dataset beside the files.
inline constexpr const char* kDatasets[] = {kSynthetic, "digits", "fashion-mnist"};

struct TrainOptions {
  int64_t total_epochs = 0;
  int64_t save_every = 0;  ///< epochs between snapshots
  /// Samples per process and step; in `train` --global-batch is resolved.
  int64_t batch_size = 32;
  std::optional<int64_t> global_batch;  ///< samples per step over all processes
  std::string optimizer = kOptimizers[0].name;
  std::optional<double> learning_rate;  ///< unset: the optimizer's default
};

/// Defaults are the official tutorial's workload: 2048 samples of 20 features, a linear layer.
struct DataOptions {
  std::string dataset = kSynthetic;  ///< one of kDatasets, or a path of .safetensors
  std::string data_dir = {};  ///< folder with the data files; empty: the installed folder
  int64_t dataset_size = 2048;  ///< training samples, synthetic only
  std::vector<int64_t> hidden = {};  ///< widths of the hidden layers; empty: the dataset's default
  std::vector<int64_t> layers = {};  ///< all widths, synthetic only; empty: the dataset's own shape
  std::string step = {};  ///< 03_ddp_spawn_compiled: package of tools/compile_step
  uint64_t seed = 42;  ///< weights, data and order; the same on every rank
};

struct CommunicationOptions {
  std::string backend = "auto";  ///< or one of backend_names()
  double bucket_mib = 25;  ///< size of the buckets of gradients
  double timeout_seconds = 600;  ///< limit for the rendezvous and for every collective
  std::string interface;  ///< network interface for the collectives; empty: the interface to rank 0
  bool no_communication = false;  ///< only for measuring: ranks do not sum gradients
};

struct OutputOptions {
  std::string snapshot;  ///< default "<program>.safetensors"
  std::string resume = "restart";  ///< "restart", "auto" or "never"
  std::string metrics;  ///< file for JSON lines; empty: none
  std::string trace;  ///< Chrome trace, a file per rank; empty: none
  bool verbose = false;
  bool quiet = false;
};

/// An option of a run, with its value in use.
struct Setting {
  std::string name;  ///< "--global-batch"
  std::string text;  ///< "64"; numbers and flags as in JSON
  bool is_default = false;
  bool agree;  ///< all ranks must have the same
  bool result;  ///< decides the final weights: a snapshot with another value is refused
  std::string reported;  ///< its name in the summary of --metrics; empty: it is not there
};

struct Options : TrainOptions,
                 DataOptions,
                 DeviceOptions,
                 CommunicationOptions,
                 IdentityOptions,
                 OutputOptions {
  bool find_batch = false;  ///< 04_ddp_launcher_auto_batch: --batch-size auto
  std::optional<int64_t> memory_limit_bytes;  ///< 04_ddp_launcher_auto_batch: --memory-limit
  /// All options, for comparisons with other ranks and runs: resolve_options() notes them.
  std::vector<Setting> settings;
};

/// Options of a single program.
struct ExtraOptions {
  bool graph = false;  ///< --graph
  bool step = false;  ///< --step
  bool batch_finder = false;  ///< --batch-size auto and --memory-limit
};

/// Parses `argv`. Dashes and underscores in option names are equal.
/// @throws HelpPrinted after --help and --version
/// @throws UsageError naming an option that is unknown, malformed, out of range or not accepted
Options parse_options(int argc, const char* const* argv, StartedBy started_by,
                      const ExtraOptions& extra = {});

/// Adds rows of the table, {"--layers", "--batch-size,--batch"}, for a program that trains nothing.
void add_stage_options(OptionGroup group, Options& options, const std::vector<std::string>& names);

/// Sets what follows from the others: batch_size and `settings`.
/// @throws UsageError unless --global-batch is divisible by `world_size`
void resolve_options(Options& options, int world_size);

/// Samples per process and step: --global-batch / `world_size` if it is given, else --batch-size.
/// @throws UsageError unless --global-batch is divisible by `world_size`
int64_t resolve_batch_size(const TrainOptions& options, int world_size);

/// --lr, or the optimizer's default.
/// @throws UsageError for an optimizer that is not one of kOptimizers
double resolve_learning_rate(const TrainOptions& options);

/// Samples per step over all processes. `options` must have a resolved batch_size.
int64_t global_batch_of(const TrainOptions& options, int world_size);

}  // namespace ddp
