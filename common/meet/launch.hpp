// common/meet/launch.hpp - rank, local rank and world size, and their sources.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddp {

/// Upper limit for a world size; larger values are typing errors.
inline constexpr int kMaxWorldSize = 1 << 17;

/// Explicit identity, which overrides the launcher's.
struct IdentityOptions {
  std::optional<int> rank;
  std::optional<int> local_rank;
  std::optional<int> world_size;
  std::optional<int> local_world_size;
  std::string master_addr;
  std::optional<int> master_port;
};

/// Place where the ranks of a job meet.
struct StoreLocation {
  enum class Kind {
    kNone,  ///< one process
    kFile,  ///< spawn: a c10d::FileStore at `file`, in a private folder of the parent
    kTcp,  ///< `server` serves host:port, the others connect
    kAgentTcp,  ///< the launcher already serves host:port: every rank is a client
    kSharedFile,  ///< HTCondor: rank 0 serves a free port and publishes its addresses in `file`
  };
  Kind kind = Kind::kNone;
  std::string host;
  int port = 0;
  std::string file;
  std::string prefix;  ///< prefix of all keys: a restart must not read keys of an earlier start
  /// Rank that serves the store; -1: no rank, or not known before the rendezvous (Slurm).
  int server = -1;
  bool operator==(const StoreLocation&) const = default;
};

/// Fact and its source, for `ddp-env`: {"rank", "1", "OMPI_COMM_WORLD_RANK"}.
struct Evidence {
  std::string what;
  std::string value;
  std::string source;
};

/// Identity of this process. Without a launcher it is rank 0 of 1.
struct LaunchEnvironment {
  /// "none", "flags", "spawn", "torchrun", "environment", "openmpi", "slurm" or "htcondor"
  std::string launcher = "none";
  int rank = 0;  ///< global rank, 0 <= rank < world_size
  int local_rank = 0;  ///< rank among the processes of this node
  int world_size = 1;
  int local_world_size = 1;  ///< processes on this node
  int node_rank = 0;
  int num_nodes = 1;
  int restart_count = 0;  ///< number of earlier starts of this job
  StoreLocation store;
  std::vector<Evidence> evidence;
  std::string note;  ///< reason why this process is alone, if that looks like a mistake
};

/// Environment variables. Tests pass their own.
using Variables = std::map<std::string, std::string>;
Variables process_variables();
std::optional<std::string> process_getenv(const std::string& name);

/// Finds the identity from the first of these: flags, spawn, torchrun, RANK set by hand, Open MPI,
/// a Slurm step, HTCondor's parallel universe; else the process is alone. Opens no socket.
/// @throws UsageError naming a variable that is missing, malformed, out of range or contradictory,
/// or a variable of an unknown launcher that started several processes
LaunchEnvironment read_launch_environment(const IdentityOptions& options = {},
                                          const Variables& variables = process_variables());

/// Identity with its sources, as aligned text or as a JSON line, with a newline at the end.
std::string describe(const LaunchEnvironment& environment, bool json);

}  // namespace ddp
