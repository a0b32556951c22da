// common/launch/launch_environment.cpp - one reader per launcher; the first that finds its
// variables decides.
//
// Note [Innermost launcher]: launchers nest (torchrun under srun, mpirun in a Slurm job), and each
// leaves its variables. The order goes from the innermost to the outermost: what started this very
// process knows best. A value is compared only with others of the same launcher.
#include "common/launch/launch_environment.hpp"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/parse.hpp"
#include "common/launch/launch_reader.hpp"

namespace ddp {

namespace internal {

namespace {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

/// Started by hand, with flags or plain variables: who is on which node is known only if it is
/// said, or if the store is at a loopback address.
void LaunchReader::set_locality_by_hand(const Sourced& rank, const Sourced& world_size,
                                        std::optional<Sourced> local_rank,
                                        std::optional<Sourced> local_world_size) {
  const bool one_node = world_size.value == 1 || is_loopback(found_.store.host);
  if (one_node) {
    const std::string rule = "derived: one node";
    local_rank = local_rank.value_or(Sourced{rank.value, rule});
    local_world_size = local_world_size.value_or(Sourced{world_size.value, rule});
  } else if (!local_rank || !local_world_size) {
    const bool flags = found_.launcher == "flags";
    throw UsageError(std::string(!local_rank
                                     ? (flags ? "--local-rank" : "LOCAL_RANK")
                                     : (flags ? "--local-world-size" : "LOCAL_WORLD_SIZE")) +
                     " is not set, expected it because the store is on another address (" +
                     found_.store.host + ") than localhost");
  }
  set_identity(rank, world_size, *local_rank, *local_world_size);
}

void LaunchReader::read_flags() {
  found_.launcher = "flags";
  const std::optional<Sourced> rank = flag(options_.rank, "--rank");
  const std::optional<Sourced> world_size = flag(options_.world_size, "--world-size");
  if (!rank || !world_size) {
    throw UsageError(std::string(rank ? "--world-size" : "--rank") +
                     " is not set, expected --rank and --world-size together");
  }
  if (world_size->value > 1) {
    require_master("--master-addr and --master-port with --world-size " +
                   std::to_string(world_size->value));
  }
  set_locality_by_hand(*rank, *world_size, flag(options_.local_rank, "--local-rank"),
                       flag(options_.local_world_size, "--local-world-size"));
  set_even_nodes();
  found_.store.prefix = "flags";
}

void LaunchReader::read_spawn() {
  const std::string marker = *getenv_("DDP_LAUNCHER");
  if (marker != "spawn") {
    throw UsageError("DDP_LAUNCHER: got " + quote(marker) + ", expected \"spawn\" or unset");
  }
  if (set("TORCHELASTIC_RUN_ID")) {
    throw UsageError(
        "DDP_LAUNCHER: got \"spawn\" next to TORCHELASTIC_RUN_ID, expected one of the two, from "
        "the launcher that started this process");
  }
  found_.launcher = "spawn";
  const Sourced rank = need("RANK", 0);
  const Sourced world_size = need("WORLD_SIZE", 1);
  const Sourced local_rank = need("LOCAL_RANK", 0);
  set_identity(rank, world_size, local_rank, need("LOCAL_WORLD_SIZE", 1));
  set_nodes({0, "derived: spawn stays on one node"}, {1, "derived: spawn stays on one node"});
  require_master("it from spawn");
  const std::optional<Sourced> listen_fd = number("DDP_STORE_LISTEN_FD", 3, 1 << 20);
  if (listen_fd.has_value() != (found_.rank == 0)) {
    throw UsageError(std::string("DDP_STORE_LISTEN_FD is ") + (listen_fd ? "set" : "not set") +
                     ", expected it on rank 0 and only there, got RANK " +
                     std::to_string(found_.rank));
  }
  if (listen_fd) {
    found_.store.listen_fd = listen_fd->value;
    record("store.listen_fd", *listen_fd);
  }
  found_.store.prefix = "spawn";
}

void LaunchReader::read_torchrun() {
  const std::optional<std::string> run_id = text("TORCHELASTIC_RUN_ID");
  found_.launcher = run_id ? "torchrun" : "environment";
  const Sourced rank = need("RANK", 0);
  const Sourced world_size = need("WORLD_SIZE", 1);
  if (run_id) {
    record("launcher", *run_id, "TORCHELASTIC_RUN_ID");
  } else {
    agrees_with("OMPI_COMM_WORLD_SIZE", world_size.value, "WORLD_SIZE");
    agrees_with("OMPI_COMM_WORLD_RANK", rank.value, "RANK");
  }
  if (run_id || world_size.value > 1) {
    require_master("the address of the store next to RANK and WORLD_SIZE");
  }
  if (run_id) {
    const Sourced local_rank = need("LOCAL_RANK", 0);
    set_identity(rank, world_size, local_rank, need("LOCAL_WORLD_SIZE", 1));
  } else {
    set_locality_by_hand(rank, world_size, number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1));
    if (set("SLURM_STEP_ID")) {
      refuse_rank_of_another("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    }
    refuse_rank_of_another("_CONDOR_PROCNO", "_CONDOR_NPROCS");
  }
  if (const std::optional<Sourced> groups = number("GROUP_WORLD_SIZE", 1)) {
    set_nodes(need("GROUP_RANK", 0), *groups);
  } else {
    set_even_nodes();
  }
  // Exactly "True", as in torch; and the agent serves only at the address it announced itself.
  const std::optional<std::string> agent = getenv_("TORCHELASTIC_USE_AGENT_STORE");
  if (agent == "True" && options_.master_addr.empty() && !options_.master_port) {
    found_.store.kind = StoreLocation::Kind::kAgentTcp;
    record("store.kind", "the launcher serves it", "TORCHELASTIC_USE_AGENT_STORE");
  }
  add_restarts("TORCHELASTIC_RESTART_COUNT");
  found_.store.prefix = run_id ? "torchrun/" + *run_id : "environment";
}

void LaunchReader::read_alone() {
  for (const char* const name :
       {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}) {
    if (set(name)) {
      throw UsageError("RANK is not set, expected it next to " + std::string(name));
    }
  }
  if (options_.local_rank || options_.local_world_size || !options_.master_addr.empty() ||
      options_.master_port) {
    throw UsageError(
        "--rank is not set, expected --rank and --world-size with the other identity flags");
  }
  // MPICH, Intel MPI and MVAPICH: without this, each of their processes would train alone.
  for (const char* const name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const std::optional<Sourced> size = number(name, 1);
    if (size && size->value > 1) {
      throw UsageError(std::string(name) + ": got " + std::to_string(size->value) +
                       ", expected torchrun, srun or Open MPI's mpirun to start several processes");
    }
  }
  if (set("SLURM_JOB_ID")) {
    record("note", "a Slurm job, but no step: srun starts its tasks", "SLURM_JOB_ID");
    for (const char* const name : {"SLURM_NTASKS", "SLURM_NNODES"}) {
      const std::optional<Sourced> size = number(name, 1);
      if (size && size->value > 1 && found_.note.empty()) {
        found_.note = std::string(name) + " is " + std::to_string(size->value) +
                      ", but this process is in no step of the job and trains alone; start me "
                      "with srun";
      }
    }
    add_restarts("SLURM_RESTART_COUNT");
  }
}

LaunchEnvironment LaunchReader::read() {
  const bool slurm = set("SLURM_STEP_ID");
  if (options_.rank || options_.world_size) {
    read_flags();
  } else if (set("DDP_LAUNCHER")) {
    read_spawn();
    add_restarts("TORCHELASTIC_RESTART_COUNT");
  } else if (set("RANK") || set("TORCHELASTIC_RUN_ID")) {
    read_torchrun();
  } else if (set("OMPI_COMM_WORLD_RANK") || set("OMPI_COMM_WORLD_SIZE") ||
             set("OMPI_COMM_WORLD_LOCAL_RANK") || set("OMPI_COMM_WORLD_LOCAL_SIZE")) {
    read_openmpi();
  } else if (slurm) {
    read_slurm();
  } else if (set("_CONDOR_PROCNO") || set("_CONDOR_NPROCS")) {
    read_htcondor();
  } else {
    read_alone();
  }
  if (slurm && found_.launcher != "slurm" && found_.launcher != "flags") {
    record("outer", *getenv_("SLURM_STEP_ID"), "SLURM_STEP_ID");
  }
  if (found_.launcher != "slurm" && found_.launcher != "none" && set("SLURM_JOB_ID")) {
    add_restarts("SLURM_RESTART_COUNT");
  }
  if (found_.world_size == 1) {
    found_.store = StoreLocation();  // nobody to meet
  } else {
    found_.store.prefix += "/" + std::to_string(found_.restart_count);
  }
  return found_;
}

}  // namespace internal

std::optional<std::string> process_getenv(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

LaunchEnvironment read_launch_environment(const Options& options, const GetEnv& getenv) {
  return internal::LaunchReader(options, getenv).read();
}

namespace {

std::string kind_name(StoreLocation::Kind kind) {
  switch (kind) {
    case StoreLocation::Kind::kNone:
      return "none";
    case StoreLocation::Kind::kTcp:
      return "tcp";
    case StoreLocation::Kind::kAgentTcp:
      return "agent_tcp";
    case StoreLocation::Kind::kSharedFile:
      return "shared_file";
  }
  return "unknown";
}

std::string describe_as_json(const LaunchEnvironment& environment) {
  nlohmann::ordered_json document = {
      {"launcher", environment.launcher},
      {"rank", environment.rank},
      {"local_rank", environment.local_rank},
      {"world_size", environment.world_size},
      {"local_world_size", environment.local_world_size},
      {"node_rank", environment.node_rank},
      {"num_nodes", environment.num_nodes},
      {"restart_count", environment.restart_count},
      {"store",
       {{"kind", kind_name(environment.store.kind)},
        {"host", environment.store.host},
        {"port", environment.store.port},
        {"listen_fd", environment.store.listen_fd},
        {"file", environment.store.file},
        {"prefix", environment.store.prefix}}},
      {"evidence", nlohmann::ordered_json::array()},
  };
  for (const Evidence& fact : environment.evidence) {
    document["evidence"].push_back(
        {{"what", fact.what}, {"value", fact.value}, {"source", fact.source}});
  }
  // Host names and ids come from outside and need not be UTF-8.
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string describe(const LaunchEnvironment& environment, bool json) {
  if (json) {
    return describe_as_json(environment);
  }
  constexpr size_t kColumn = 20;
  std::ostringstream text;
  const auto line = [&text](const std::string& name, const std::string& value) {
    text << name << std::string(name.size() < kColumn ? kColumn - name.size() : 1, ' ') << value
         << '\n';
  };
  line("launcher", environment.launcher);
  line("rank", std::to_string(environment.rank) + " of " + std::to_string(environment.world_size));
  line("local rank", std::to_string(environment.local_rank) + " of " +
                         std::to_string(environment.local_world_size));
  line("node",
       std::to_string(environment.node_rank) + " of " + std::to_string(environment.num_nodes));
  line("restarts", std::to_string(environment.restart_count));
  const StoreLocation& store = environment.store;
  line("store", kind_name(store.kind) +
                    (store.port > 0 ? " " + store.host + ":" + std::to_string(store.port) : "") +
                    (store.file.empty() ? "" : " " + store.file) +
                    (store.listen_fd >= 0 ? " (inherited socket)" : ""));
  line("store prefix", store.prefix);
  text << (environment.evidence.empty() ? "nobody started this process\n" : "because\n");
  for (const Evidence& fact : environment.evidence) {
    line("  " + fact.what, fact.value + "  (" + fact.source + ")");
  }
  return text.str();
}

}  // namespace ddp
