// common/launch/counting_launchers.hpp - launchers that tell each process its number and no place
// to meet: which variables each of them sets.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddp {

struct CountingLauncher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  std::vector<const char*> local_world_size;  ///< the first that is set counts; none: not told
  const char* num_nodes;  ///< nullptr: not told
  std::vector<const char*> job;  ///< together they name this start of the job
  const char* folder;  ///< of the job, on every node; nullptr: none
  const char* pass;  ///< how the address of the store gets to the ranks
};

extern const CountingLauncher kFlux;
extern const CountingLauncher kHydra;  ///< of MPICH, Intel MPI and MVAPICH
extern const CountingLauncher kJsrun;
extern const CountingLauncher kPals;
/// All of them.
extern const std::vector<const CountingLauncher*> kCountingLaunchers;

/// Of MPICH's Hydra, which names no job: its process that started this one, directly or through a
/// shell, by its number and its start. Ranks of one node have the same.
std::optional<std::string> hydra_proxy();

}  // namespace ddp
