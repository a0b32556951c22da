// bench/launchers.hpp - what bench knows of launchers, a row each.
#pragma once

#include "bench/catalog.hpp"
#include "bench/record.hpp"
#include "common/meet/launchers.hpp"

namespace ddp::bench {

/// Argument by which bench starts the ranks of a command: N, and the command.
inline constexpr const char* kStartRanks = "--start-ranks";

/// How bench starts programs: what it knows of a launcher. common/meet has the launcher's rules.
struct Starter {
  std::string name;
  LaunchKind starts = LaunchKind::kLauncher;  ///< the programs that it starts
  bool is_python = false;  ///< takes seconds to start; the one in .venv has LibTorch's version
  bool has_mpi = false;  ///< its processes are those of MPI
  bool spans_nodes = false;  ///< those of an allocation; their folders are not this node's
  /// What stands in front of the command line of a program that does not start its ranks itself.
  /// @throws UsageError if the allocation has too few nodes
  std::vector<std::string> (*command)(const Run& run, const std::string& path,
                                      const Settings& settings) = nullptr;
};
const std::vector<Starter>& starters();

/// @param name a launcher's; for "none" a row that does nothing
const Starter& find_starter(const std::string& name);

/// Paths by name of the wanted launchers, or else of all that are installed. Launchers that are
/// missing are added to `not_run`.
/// @throws UsageError if a wanted launcher is missing
std::map<std::string, std::string> find_launchers(const Settings& settings,
                                                  std::vector<NotRun>& not_run);

/// A number of the environment; `otherwise` if it is not there or not positive.
int environment_number(const char* name, int otherwise);

/// Standard output of a command that answers at once; empty if it fails.
std::string answer_of(const std::vector<std::string>& argv);

}  // namespace ddp::bench
