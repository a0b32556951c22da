// bench/run/settings.hpp - the command line of bench.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/report/analysis.hpp"
#include "bench/report/statistics.hpp"
#include "bench/run/benchmark_flags.hpp"

namespace ddp::bench {

inline constexpr int kMaxRepetitions = 1000;

/// Whether a list of the settings has it.
template <typename T>
bool contains(const std::vector<T>& list, const std::type_identity_t<T>& value) {
  return std::ranges::find(list, value) != list.end();
}

struct Settings {
  // What is compared. An empty list: bench decides.
  std::vector<std::string> stages;  ///< program names, or numbers: "03" is all of stage 03
  std::vector<std::string> launchers;  ///< "spawn", "torchrun", "mpirun", "srun"
  std::vector<std::string> backends;  ///< "gloo", "hierarchical", "mpi", "nccl", "shm"
  std::vector<std::string> peers;  ///< "pytorch", "accelerate", ..., "c10d"
  std::vector<std::string> models;  ///< "T", "S", "M", "L", "digits", "64-256-256-10@32"
  std::vector<int> world_sizes;
  std::vector<std::string> scaling = {"weak"};  ///< "weak", "strong"
  std::vector<std::string> speedups = {"none"};  ///< "none", "fused", "graph"
  std::vector<double> bucket_mib = {25};
  std::vector<std::string> gradient_compressions = {"none"};  ///< "none", "bf16", "fp16"
  std::vector<std::string> shard_optimizer = {"no"};  ///< "no", "yes"
  std::optional<std::int64_t> global_batch;  ///< in strong scaling; none: bench decides
  std::vector<int> nodes = {1};  ///< that srun starts ranks on, ascending
  std::optional<Network> network;  ///< to predict more ranks with; none: only from a measured one
  std::string device = "auto";  ///< "auto", "cpu", "cuda"
  std::uint64_t seed = 42;

  // How it is measured.
  std::optional<std::int64_t> steps;  ///< timed steps per run, at least; none: bench decides
  std::optional<int> repetitions;  ///< of every configuration; none: bench decides
  bool quick = false;
  bool full = false;
  bool micro = false;  ///< the pieces too, not only whole steps
  double budget_s = 150;  ///< that repetitions and steps are chosen for
  double timeout_s = 120;  ///< for one run
  int quiet_wait_s = 30;  ///< at most, for other programs to leave the processors

  // What is written.
  bool no_samples = false;  ///< the document goes without the single steps
  bool dry_run = false;
  bool list_only = false;  ///< --benchmark_list_tests
  bool format_json = false;  ///< --benchmark_format=json
  bool json_on_stdout = false;  ///< which then holds nothing else
  std::string json_file;  ///< empty: none
  std::string html_file;  ///< empty: no page
  std::string filter;  ///< --benchmark_filter
  BenchmarkOutput benchmark;

  std::string stage_dir;
  std::string peers_dir;
  std::string data_dir;  ///< of fashion-mnist; empty: where it is installed
  std::vector<std::string> arguments;  ///< as given

  /// bench decides what is repeated, what is only checked and what is left out.
  bool by_default() const { return stages.empty() && launchers.empty() && backends.empty(); }
  /// Of what is repeated most.
  int most_repetitions() const { return repetitions.value_or(quick ? 1 : full ? 15 : 9); }
  /// Of what takes seconds to start, or answers a question at the side: the least with an interval.
  int few_repetitions() const {
    return repetitions.value_or(
        std::min(most_repetitions(), static_cast<int>(kMinPairsForInterval)));
  }
};

/// Dashes and underscores in option names are equal. Prints and exits with 0 for --help and
/// --version.
/// @throws UsageError naming the option that is unknown, malformed, out of range or not available
Settings parse_settings(int argc, const char* const* argv);

}  // namespace ddp::bench
