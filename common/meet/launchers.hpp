// common/meet/launchers.hpp - what a launcher tells its ranks, and what is known of each launcher.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddp {

/// Upper limit for a world size; larger values are typing errors.
inline constexpr int kMaxWorldSize = 1 << 17;

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
  int server = -1;  ///< rank that serves the store; -1: none, or unknown until all meet (Slurm)
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
  std::string launcher = "none";  ///< name of a row in launchers.cpp
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

/// Number and its source: a variable, a flag or a rule.
struct SourcedNumber {
  int value = 0;
  std::string source;
};

struct Launcher;

/// What a launcher's rules read, and what they have found so far.
struct LaunchReading {
  Variables variables;  ///< and flags, as "--rank"
  const Launcher* launcher = nullptr;
  LaunchEnvironment found = {};

  std::optional<std::string> find(const std::string& name) const {
    const auto variable = variables.find(name);
    return variable != variables.end() ? std::optional(variable->second) : std::nullopt;
  }
  /// @throws UsageError if it is unset or empty
  std::string text(const std::string& name) const;
  /// @throws UsageError if it is out of range
  std::optional<SourcedNumber> number(const std::string& name, int minimum,
                                      int maximum = kMaxWorldSize) const;
  /// @throws UsageError if it is unset or out of range
  SourcedNumber need(const std::string& name, int minimum) const;
  /// "--master-addr" if that flag is given, else "MASTER_ADDR".
  std::string master_addr() const;
  /// Its value without the brackets of "[fd00::1]"; empty if it is not set.
  /// @throws UsageError if it is not the name or address of one host
  std::string master_host() const;

  void record(const std::string& what, const std::string& value, const std::string& source) {
    found.evidence.push_back({what, value, source});
  }
  void set(const std::string& what, int& field, const SourcedNumber& number) {
    record(what, std::to_string(number.value), number.source);
    field = number.value;
  }
};

/// Place of a process among those of its node.
struct LocalNumbers {
  SourcedNumber rank;
  SourcedNumber world_size;
  bool is_own_node = false;  ///< the launcher does not say which ranks share a node
};

/// Variables or flags that tell a rank's numbers; "" if a number is derived.
struct NamesOfNumbers {
  const char* rank = "";
  const char* world_size = "";
  const char* local_rank = "";
  const char* local_world_size = "";
  const char* node_rank = "";
  const char* num_nodes = "";
};

/// Names of a launcher's variables, and its rules; "" and nullptr if it has none.
struct Launcher {
  const char* name = "none";
  const char* shows = "";  ///< variable that every process of this launcher has
  NamesOfNumbers numbers = {};
  const char* restart_count = "";
  const char* batch_job = "";  ///< set in a batch script too, which may be restarted alone
  const char* store_file = "";  ///< the ranks meet at its FileStore, and not at MASTER_ADDR
  const char* error_file = "";  ///< the launcher reads the root cause from it
  const char* of_ranks = "";  ///< prefixes of other variables of a rank, which no new job gets
  const char* settings = "";  ///< prefix of a user's variables, which its ranks do not pass on
  const char* to_set_master = "";  ///< how it sets MASTER_ADDR, for messages

  /// @param shown value of the variable `shows`; nullptr: any value will do
  bool (*recognises)(const std::string& shown) = nullptr;
  /// nullptr: they are in their variables
  LocalNumbers (*local_numbers)(const LaunchReading& reading) = nullptr;
  /// Name of the job, the same on all its ranks.
  std::string (*job)(const LaunchReading& reading) = nullptr;
  /// Completes the place to meet where MASTER_ADDR or MASTER_PORT is not set.
  void (*find_store)(LaunchReading& reading, const std::string& job) = nullptr;

  bool knows_nodes = false;  ///< so that a loopback address for several nodes is a mistake
  bool binds_cores = false;  ///< it may bind each rank to some of the job's cores
  bool parent_has_all_cores = false;  ///< its own process is not bound: its mask shows all of them
  bool dies_with_parent = false;  ///< the ranks of a launcher that is killed must end by themselves
  bool reads_output = false;  ///< the ranks' standard output is a pipe to it
  bool terminates_ranks = false;  ///< ends them by SIGTERM if one fails, and reads their exit codes
};

// Names of launchers that bench starts, too.
inline constexpr const char* kTorchrunName = "torchrun";
inline constexpr const char* kMpirunName = "mpirun";
inline constexpr const char* kSrunName = "srun";

/// The row of a process that no launcher started.
inline constexpr Launcher kNoLauncher;

/// start_ranks(): this library's own launcher.
inline constexpr Launcher kSpawnLauncher{
    .name = "spawn",
    .shows = "DDP_LAUNCHER",
    .numbers = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    .store_file = "DDP_STORE_FILE"};

/// All launchers, from the innermost to the outermost: torchrun may run under srun, and only the
/// innermost knows this process's rank.
std::span<const Launcher> launchers();

/// Row of the launcher that started this process.
const Launcher& launcher_of(const LaunchEnvironment& environment);

/// True if MPI_Init() joins the ranks of this job: MPI has the same rank for this process, and the
/// same world size where it tells that.
bool is_mpi_world(const LaunchEnvironment& environment);

/// What schedulers' variables allow all ranks of this host together. Numbers <= 0 are no limits.
struct SchedulerLimits {
  std::vector<int64_t> cores;
  std::vector<int64_t> memory_mib;
};
SchedulerLimits scheduler_limits(const Variables& variables);

}  // namespace ddp
