// common/launch/launch_environment.hpp - who am I: rank, local rank, world size, and who said so.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/launch/options.hpp"

namespace ddp {

/// Where the ranks of one job meet.
struct StoreLocation {
  enum class Kind {
    kNone,  ///< one process: nobody to meet
    kInheritedFile,  ///< one host: the file that the parent of all ranks opened for them
    kMeetingFile,  ///< one host: `file`, which rank 0 makes for this user alone
    kTcp,  ///< rank 0 serves host:port, the others connect
    kAgentTcp,  ///< the launcher already serves host:port: every rank is a client
    kSharedFile,  ///< rank 0 serves a free port and publishes "host:port key" in `file`
  };
  Kind kind = Kind::kNone;
  bool is_served_by_rank_0() const { return kind == Kind::kTcp || kind == Kind::kSharedFile; }
  bool is_on_network() const { return is_served_by_rank_0() || kind == Kind::kAgentTcp; }
  std::string host;
  int port = 0;
  std::string peer;  ///< another host of the job, if known: how rank 0 finds the way to the others
  int fd = -1;  ///< kInheritedFile
  std::string file;  ///< private to this job, visible to all its ranks
  std::string key;  ///< 32 hexadecimal digits, or empty: seals a store on a network
  std::string prefix;  ///< keys of this start of this job, so that a restart never reads old ones
};

/// One fact and where it came from, for `ddp-env`: {"rank", "1", "OMPI_COMM_WORLD_RANK"}.
struct Evidence {
  std::string what;
  std::string value;
  std::string source;
};

/// The identity of this process. A program started by nobody is rank 0 of 1.
struct LaunchEnvironment {
  std::string launcher = "none";  ///< "none", "flags", "spawn", "torchrun", "environment",
                                  ///< "kubernetes", "openmpi", "flux", "hydra", "slurm", "jsrun",
                                  ///< "pals", "htcondor"
  int rank = 0;  ///< global rank, 0 <= rank < world_size
  int local_rank = 0;  ///< rank among the processes of this node
  int world_size = 1;
  int local_world_size = 1;  ///< processes on this node
  int node_rank = 0;
  int num_nodes = 1;
  int restart_count = 0;  ///< > 0: the launcher started this job before
  StoreLocation store;
  std::vector<Evidence> evidence;
  std::string note;  ///< for a program that a launcher should start: why this process is alone
};

/// Looks a variable up; std::nullopt if unset. Tests pass a table instead of the environment.
using GetEnv = std::function<std::optional<std::string>(const std::string&)>;
std::optional<std::string> process_getenv(const std::string& name);

/// Order: explicit flags, our own spawn and torchrun (RANK, ...), Open MPI, Flux, Hydra, a Slurm
/// step, jsrun, PALS, HTCondor's parallel universe, else alone: docs/launchers.md. Opens no socket,
/// and no file but, for Hydra, /proc.
/// @throws UsageError naming the variable: missing, malformed, out of range or contradictory
LaunchEnvironment read_launch_environment(const Options& options,
                                          const GetEnv& getenv = process_getenv);

/// The whole identity with its sources, as aligned text or as one JSON line, each with its newline.
std::string describe(const LaunchEnvironment& environment, bool json);

/// Expands a Slurm node list, "n[1-2,07],gpu3-ib" -> {"n1", "n2", "n07", "gpu3-ib"}, as `scontrol
/// show hostnames`.
/// @throws UsageError if the brackets or ranges are malformed
std::vector<std::string> expand_node_list(const std::string& node_list);

}  // namespace ddp
