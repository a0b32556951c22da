// bench/run/micro_command.hpp - the command line of bench_micro.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddp::bench {

/// One run of bench_micro. Empty and unset members: its defaults.
struct MicroRun {
  std::string suite;  ///< "limits", "all_reduce" or "pieces"
  std::optional<int> world_size = std::nullopt;
  int nodes = 1;  ///< that srun spreads them over
  std::string device = "";
  std::vector<std::string> backends = {};
  /// Sizes of single all-reduces; an empty list: none of them.
  std::optional<std::vector<std::int64_t>> bytes = std::nullopt;
  /// The buckets of each step, in the order in which they are started, by its name.
  std::map<std::string, std::vector<std::int64_t>> steps = {};
  std::optional<double> min_seconds = std::nullopt;
  std::optional<int> repetitions = std::nullopt;
  std::optional<int> passes = std::nullopt;  ///< over all benchmarks, each in another order
  std::optional<double> timeout_s = std::nullopt;
  std::string filter = "";  ///< regular expression over the names
};

/// @param program path of bench_micro @param out file that read_micro_results() will read
/// @return arguments for run_child(); a launcher's own go in front, as in "mpirun -np 2"
std::vector<std::string> micro_command(const std::string& program, const MicroRun& run,
                                       const std::string& out);

}  // namespace ddp::bench
