// common/launch/cluster_environment.cpp - what Open MPI, Slurm and HTCondor say about a process.
#include <unistd.h>

#include <array>
#include <cstdint>

#include "common/base/parse.hpp"
#include "common/launch/launch_reader.hpp"

namespace ddp::internal {

namespace {

/// "2(x3),1" -> {2, 2, 2, 1}
std::vector<int> expand_tasks_per_node(const std::string& name, const std::string& text) {
  constexpr int kMostNodes = 65536;
  std::vector<int> tasks;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string item = text.substr(start, comma - start);
    const size_t open = item.find("(x");
    const bool closed = item.ends_with(')');
    if ((open != std::string::npos) != closed) {
      throw UsageError(name + ": got " + quote(text) + ", expected counts as in 2(x3),1");
    }
    const int repeat =
        closed
            ? parse_integer<int>(name, item.substr(open + 2, item.size() - open - 3), 1, kMostNodes)
            : 1;
    tasks.insert(tasks.end(), static_cast<size_t>(repeat),
                 parse_integer<int>(name, item.substr(0, open), 0));
    if (tasks.size() > kMostNodes) {
      throw UsageError(name + ": got " + quote(text) + ", expected at most 65536 nodes");
    }
    start = comma + 1;
  }
  return tasks;
}

std::vector<std::string> hosts_of(const std::string& name, const std::optional<std::string>& list) {
  if (!list) {
    throw UsageError(name + " is not set, expected the nodes' names, or MASTER_ADDR");
  }
  try {
    return expand_node_list(*list);
  } catch (const UsageError& error) {
    throw UsageError(name + ": " + error.what());
  }
}

}  // namespace

void LaunchReader::read_openmpi() {
  found_.launcher = "openmpi";
  const Sourced rank = need("OMPI_COMM_WORLD_RANK", 0);
  const Sourced world_size = need("OMPI_COMM_WORLD_SIZE", 1);
  const Sourced local_rank = need("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  set_identity(rank, world_size, local_rank, need("OMPI_COMM_WORLD_LOCAL_SIZE", 1));
  agrees_with("WORLD_SIZE", found_.world_size, "OMPI_COMM_WORLD_SIZE");
  agrees_with("LOCAL_RANK", found_.local_rank, "OMPI_COMM_WORLD_LOCAL_RANK");
  agrees_with("LOCAL_WORLD_SIZE", found_.local_world_size, "OMPI_COMM_WORLD_LOCAL_SIZE");
  // OMPI_COMM_WORLD_NODE_RANK is no node's number but a local rank. Ranks fill a node first, or go
  // round.
  const int local = found_.local_world_size;
  const int nodes = (found_.world_size + local - 1) / local;
  const bool fills = found_.rank % local == found_.local_rank;
  found_.num_nodes = nodes;
  found_.node_rank = fills ? found_.rank / local : found_.rank % nodes;
  record("node_rank", {found_.node_rank, "derived: every node has as many processes as this one"});
  record("num_nodes", {nodes, "derived: every node has as many processes as this one"});

  std::optional<std::string> job = text("PMIX_NAMESPACE");
  job = job ? job : text("OMPI_MCA_ess_base_jobid");
  found_.store.prefix = "openmpi/" + job.value_or("job");
  if (find_master() || found_.world_size == 1) {
    return;
  }
  const std::string pass = "mpirun -x MASTER_ADDR -x MASTER_PORT";
  if (!found_.store.host.empty() || found_.store.port != 0) {
    require_master(pass);
  }
  if (local != found_.world_size) {
    throw UsageError("MASTER_ADDR is not set, expected " + pass +
                     " because the ranks are on several nodes (OMPI_COMM_WORLD_LOCAL_SIZE " +
                     std::to_string(local) + " of " + std::to_string(found_.world_size) + ")");
  }
  if (!job) {
    throw UsageError("PMIX_NAMESPACE is not set, expected the job's name from mpirun, or " + pass);
  }
  std::string folder = "/tmp";
  for (const char* const name :
       {"PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_jobfam_session_dir", "OMPI_FILE_LOCATION", "TMPDIR"}) {
    const std::optional<std::string> value = getenv_(name);
    if (value && value->starts_with('/')) {
      folder = *value;
      break;
    }
  }
  set_shared_file(folder, *job);
}

void LaunchReader::read_slurm() {
  found_.launcher = "slurm";
  // A step may be smaller than its job, so the step's variables come first.
  const auto of_step = [this](const char* step, const char* job) { return set(step) ? step : job; };
  parse_integer<uint32_t>("SLURM_STEP_ID", *getenv_("SLURM_STEP_ID"), 0);
  const std::string job = text("SLURM_JOB_ID").value_or("");
  parse_integer<uint64_t>("SLURM_JOB_ID", job, 1);
  const std::string step = job + "." + *getenv_("SLURM_STEP_ID");
  record("launcher", step, "SLURM_STEP_ID");
  const Sourced world_size = need(of_step("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1);
  const Sourced num_nodes = need(of_step("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), 1);
  const Sourced node_rank = need("SLURM_NODEID", 0);
  require_below(node_rank, num_nodes);

  const std::string per_node = of_step("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const std::string counts = text(per_node).value_or("");
  const std::vector<int> tasks = expand_tasks_per_node(per_node, counts);
  int64_t sum = 0;
  for (const int count : tasks) {
    sum += count;
  }
  if (tasks.size() != static_cast<size_t>(num_nodes.value) || sum != world_size.value) {
    throw UsageError(per_node + ": got " + quote(counts) + ", expected " +
                     std::to_string(num_nodes.value) + " nodes with " +
                     std::to_string(world_size.value) + " tasks together");
  }
  const Sourced rank = need("SLURM_PROCID", 0);
  set_identity(rank, world_size, need("SLURM_LOCALID", 0),
               {tasks[static_cast<size_t>(node_rank.value)], per_node});
  found_.node_rank = node_rank.value;
  found_.num_nodes = num_nodes.value;
  record("node_rank", node_rank);
  record("num_nodes", num_nodes);
  agrees_with("WORLD_SIZE", found_.world_size, world_size.source);
  agrees_with("LOCAL_RANK", found_.local_rank, "SLURM_LOCALID");
  agrees_with("LOCAL_WORLD_SIZE", found_.local_world_size, per_node);

  add_restarts("SLURM_RESTART_COUNT");
  found_.store.prefix = "slurm/" + step;
  if (find_master() || found_.world_size == 1) {
    return;
  }
  if (found_.store.host.empty()) {
    const char* const name = of_step("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    const std::vector<std::string> hosts = hosts_of(name, text(name));
    if (hosts.size() != tasks.size()) {
      throw UsageError(std::string(name) + ": got " + std::to_string(hosts.size()) +
                       " nodes, expected " + num_nodes.source + " (" +
                       std::to_string(num_nodes.value) + ")");
    }
    found_.store.host = hosts.front();
    found_.store.peer = hosts.back();
    record("store.host", hosts.front(), std::string("first of ") + name);
  }
  if (found_.store.port == 0) {
    // FNV-1a. Below the ephemeral range, where a client's socket could hold the port by chance.
    uint32_t hash = 2166136261U;
    for (const char c : step + "." + std::to_string(found_.restart_count)) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
    }
    found_.store.port = 20000 + static_cast<int>(hash % 12000U);
    record("store.port", {found_.store.port, "derived from job, step and restart"});
  }
}

void LaunchReader::read_htcondor() {
  found_.launcher = "htcondor";
  const Sourced rank = need("_CONDOR_PROCNO", 0);
  const Sourced world_size = need("_CONDOR_NPROCS", 1);
  // Each process has a slot of its own, with only its own GPUs visible, even next to another one.
  const std::string rule = "derived: one process per slot";
  set_identity(rank, world_size, {0, rule}, {1, rule});
  set_nodes({rank.value, rule}, {world_size.value, rule});
  agrees_with("WORLD_SIZE", found_.world_size, "_CONDOR_NPROCS");
  agrees_with("LOCAL_RANK", found_.local_rank, "HTCondor (one process per slot)");
  agrees_with("LOCAL_WORLD_SIZE", found_.local_world_size, "HTCondor (one process per slot)");
  const std::optional<std::string> job = text("DDP_JOB_ID");
  found_.store.prefix = "htcondor/" + job.value_or("job");
  if (find_master() || found_.world_size == 1) {
    return;
  }
  if (!found_.store.host.empty() || found_.store.port != 0) {
    require_master("MASTER_ADDR and MASTER_PORT together");
  }
  const std::optional<std::string> folder = text("_CONDOR_JOB_IWD");
  if (!folder || !folder->starts_with('/')) {
    throw UsageError("_CONDOR_JOB_IWD: got " + quote(folder.value_or("")) +
                     ", expected the job's folder, which all its processes see");
  }
  if (!job) {
    throw UsageError(
        "DDP_JOB_ID is not set, expected the cluster's id, e.g. environment = "
        "\"DDP_JOB_ID=$(ClusterId)\" in the submission file");
  }
  // Rank 0 serves where the others can reach it: by its machine's name.
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  found_.store.host = host.data();
  set_shared_file(*folder, *job);
}

}  // namespace ddp::internal
