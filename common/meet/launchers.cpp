// common/meet/launchers.cpp - a row for each launcher. A further launcher is a further row.
#include "common/meet/launchers.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <regex>

#include "common/base/files.hpp"
#include "common/base/hash.hpp"
#include "common/base/parse.hpp"
#include "common/meet/address.hpp"

namespace ddp {
namespace {

constexpr const char* kOneNode = "derived: one node";

LocalNumbers own_node(const char* rule) {
  return {{0, rule}, {1, rule}, /*is_own_node=*/true};
}

/// 8 hex digits, the same on every rank.
std::string digest_of(const std::string& text) {
  return Hash().update(text).hex().substr(0, 8);
}

/// Completes the place to meet: on the only node, at a port that all ranks derive from the job.
void derive_place(LaunchReading& reading, const std::string& job) {
  if (job.empty()) {
    return;
  }
  StoreLocation& store = reading.found.store;
  if (store.host.empty() && reading.found.num_nodes == 1) {
    store.host = "127.0.0.1";
    reading.record("store.host", store.host, kOneNode);
  }
  if (store.port == 0) {
    // Below the ephemeral range, in which a client's socket may hold it by chance.
    const std::string digest = digest_of(fmt::format("{}.{}", job, reading.found.restart_count));
    reading.set("store.port", store.port,
                {20000 + static_cast<int>(std::stoul(digest, nullptr, 16) % 12000U),
                 "derived from the job's name"});
  }
}

LocalNumbers local_by_hand(const LaunchReading& reading) {
  const LaunchEnvironment& found = reading.found;
  const NamesOfNumbers& names = reading.launcher->numbers;
  const bool is_here = is_loopback_address(reading.master_host());
  // Kubeflow tells its master that the address is localhost, though the others are elsewhere.
  const bool is_pod = reading.find("KUBERNETES_SERVICE_HOST").has_value();
  if (is_pod && (found.rank == 0 || !is_here) && !reading.find(names.local_rank)) {
    return own_node("derived: one process per pod");
  }
  const auto local_rank = reading.number(names.local_rank, 0);
  const auto size = reading.number(names.local_world_size, 1);
  if (found.world_size == 1 || (is_here && !is_pod)) {
    return {local_rank.value_or(SourcedNumber{found.rank, kOneNode}),
            size.value_or(SourcedNumber{found.world_size, kOneNode})};
  }
  const SourcedNumber rank = reading.need(names.local_rank, 0);
  const SourcedNumber least{rank.value + 1, "derived: LOCAL_WORLD_SIZE is not set"};
  return {rank, size.value_or(least), /*is_own_node=*/!size};
}

std::string job_of_mpirun(const LaunchReading& reading) {
  const std::optional<std::string> name = reading.find("PMIX_NAMESPACE");
  const std::string job = name ? *name : reading.find("OMPI_MCA_ess_base_jobid").value_or("");
  // Two containers of one host may have the same name. So beside it stands where mpirun listens,
  // for PMIx its daemon on each node.
  std::string listens = reading.find("OMPI_MCA_orte_hnp_uri").value_or("");
  for (const auto& [variable, value] : reading.variables) {
    const bool is_daemon = variable.starts_with("PMIX_SERVER_URI");
    listens += is_daemon && reading.found.num_nodes == 1 ? value : "";
  }
  return listens.empty() ? job : fmt::format("{}.{}", job, digest_of(listens));
}

/// Slurm numbers the steps that run no tasks, such as salloc's shell, down from 2^32 - 1.
bool has_tasks(const std::string& step) {
  return parse_integer<uint32_t>("SLURM_STEP_ID", step, 0) < 0xfffffff0;
}

/// Counts this node's tasks by Slurm's list: "2(x3),1" -> 2 for nodes 0 to 2, 1 for node 3.
LocalNumbers local_of_srun(const LaunchReading& reading) {
  static const std::regex count(R"((\d{1,6})(?:\(x([1-9]\d{0,5})\))?)");
  const SourcedNumber rank = reading.need(reading.launcher->numbers.local_rank, 0);
  const std::string name = "SLURM_STEP_TASKS_PER_NODE";
  int node = reading.found.node_rank;
  for (const std::string& item : split(reading.text(name))) {
    std::smatch found;
    if (!std::regex_match(item, found, count)) {
      break;
    }
    node -= found[2].matched ? std::stoi(found[2]) : 1;
    if (node < 0) {
      return {rank, {std::stoi(found[1]), name}};
    }
  }
  refuse("{}: got {}, expected a count for each node, as 2(x3),1", name, quote(reading.text(name)));
}

/// First name of a list, "r1-n07x" of "r[1-2]-n[07-9,12]x,login". A container may lack scontrol.
std::string first_host(const std::string& name, const std::string& list) {
  std::string host = list;
  for (size_t open = 0; (open = host.find('[', open)) != std::string::npos;) {
    const size_t rest = host.find_first_not_of("0123456789", open + 1);
    const size_t end = host.find_first_not_of("0123456789-,", open + 1);
    if (rest == open + 1 || end == std::string::npos || host[end] != ']') {
      break;
    }
    host.erase(rest, end + 1 - rest).erase(open, 1);
  }
  host.resize(std::min(host.find(','), host.size()));
  if (host.empty() || host.find_first_of("[]") != std::string::npos) {
    refuse("{}: got {}, expected host names, as n[1-2,07]; or set MASTER_ADDR", name, quote(list));
  }
  return host;
}

void find_store_of_srun(LaunchReading& reading, const std::string& job) {
  const LaunchEnvironment& found = reading.found;
  StoreLocation& store = reading.found.store;
  if (store.host.empty() && found.num_nodes > 1) {
    store.host = first_host("SLURM_STEP_NODELIST", reading.text("SLURM_STEP_NODELIST"));
    reading.record("store.host", store.host, "first of SLURM_STEP_NODELIST");
    // With --distribution=arbitrary rank 0 may run on another node.
    const bool serves = found.node_rank == 0 && found.local_rank == 0;
    store.server = serves ? found.rank : -1;
    reading.record("store.server", serves ? "this rank" : "another rank",
                   "derived: the first process of the first node");
  }
  derive_place(reading, job);
}

/// Parallel universe: rank 0 serves at its machine's name and publishes that in the job's folder.
void find_store_of_htcondor(LaunchReading& reading, const std::string& job) {
  StoreLocation& store = reading.found.store;
  if (!store.host.empty() || store.port != 0) {
    return;
  }
  const std::string folder = reading.text("_CONDOR_JOB_IWD");
  if (job.empty() || job.find('/') != std::string::npos) {
    refuse(
        "DDP_JOB_ID: got {}, expected environment = \"DDP_JOB_ID=$(ClusterId)\" in the "
        "submission file",
        quote(job));
  }
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  store.kind = StoreLocation::Kind::kSharedFile;
  store.host = host.data();
  store.file = fmt::format("{}/ddp-store-{}-{}", folder, geteuid(), job);
  reading.record("store.file", store.file, "_CONDOR_JOB_IWD, DDP_JOB_ID");
}

constexpr NamesOfNumbers kOfTorchrun{
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"};

constexpr Launcher kMpirun{.name = kMpirunName,
                           .shows = "OMPI_COMM_WORLD_RANK",
                           .numbers = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                       "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                           .of_ranks = "OMPI_COMM_WORLD_,OMPI_UNIVERSE_,PMIX_",
                           .settings = "OMPI_",
                           .to_set_master = ": mpirun -x MASTER_ADDR -x MASTER_PORT",
                           .job = job_of_mpirun,
                           .find_store = derive_place,
                           .knows_nodes = true,
                           .binds_cores = true,
                           .parent_has_all_cores = true,
                           .dies_with_parent = true,
                           .reads_output = true};

constexpr Launcher kLaunchers[] = {
    {.name = "flags",
     .shows = "--rank",
     .numbers = {"--rank", "--world-size", "--local-rank", "--local-world-size"},
     .local_numbers = local_by_hand},
    kSpawnLauncher,
    {.name = kTorchrunName,
     .shows = "TORCHELASTIC_RUN_ID",
     .numbers = kOfTorchrun,
     .restart_count = "TORCHELASTIC_RESTART_COUNT",
     .error_file = "TORCHELASTIC_ERROR_FILE",
     .of_ranks = "GROUP_,ROLE_,TORCHELASTIC_",
     .job = [](const LaunchReading& reading) { return reading.text(reading.launcher->shows); },
     .dies_with_parent = true},
    {.name = "environment",
     .shows = "RANK",
     .numbers = kOfTorchrun,
     .of_ranks = "MASTER_",
     .local_numbers = local_by_hand},
    kMpirun,
    // SLURM_* without SLURM_STEP_ID is a batch script. As in slurm/job.sh, tasks that a task starts
    // see all GPUs of their node. slurmstepd may run on any core.
    {.name = kSrunName,
     .shows = "SLURM_STEP_ID",
     .numbers = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID",
                 "SLURM_STEP_NUM_NODES"},
     .restart_count = "SLURM_RESTART_COUNT",
     .batch_job = "SLURM_JOB_ID",
     .of_ranks = "SLURM_STEP_,SLURM_STEPID,SLURM_GPU_BIND,SLURM_GPUS_PER_TASK,SLURM_TRES_PER_TASK,"
                 "SLURM_TRES_BIND,SLURM_NTASKS_PER_GPU",
     .recognises = has_tasks,
     .local_numbers = local_of_srun,
     .job =
         [](auto& reading) {
           return reading.text("SLURM_JOB_ID") + "." + reading.text("SLURM_STEP_ID");
         },
     .find_store = find_store_of_srun,
     .knows_nodes = true,
     .binds_cores = true,
     .terminates_ranks = true},
    {.name = "htcondor",
     .shows = "_CONDOR_PROCNO",
     .numbers = {"_CONDOR_PROCNO", "_CONDOR_NPROCS"},
     .local_numbers = [](auto&) { return own_node("derived: one process per slot"); },
     .job = [](const LaunchReading& reading) { return reading.find("DDP_JOB_ID").value_or(""); },
     .find_store = find_store_of_htcondor},
};

}  // namespace

std::optional<std::string> process_getenv(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Variables process_variables() {
  Variables variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text(*variable);
    if (const size_t equals = text.find('=', 1); equals != std::string::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

std::string LaunchReading::text(const std::string& name) const {
  const std::optional<std::string> value = find(name);
  if (!value || value->empty()) {
    refuse("{} is {}, expected a value from {}", name, value ? "empty" : "not set", found.launcher);
  }
  return *value;
}

std::optional<SourcedNumber> LaunchReading::number(const std::string& name, int minimum,
                                                   int maximum) const {
  const std::optional<std::string> value = find(name);
  return value ? std::optional(SourcedNumber{parse_integer(name, *value, minimum, maximum), name})
               : std::nullopt;
}

SourcedNumber LaunchReading::need(const std::string& name, int minimum) const {
  const std::optional<SourcedNumber> value = number(name, minimum);
  if (!value) {
    refuse("{} is not set, expected an integer >= {} next to the other variables ({})", name,
           minimum, found.launcher);
  }
  return *value;
}

std::string LaunchReading::master_addr() const {
  return variables.contains("--master-addr") ? "--master-addr" : "MASTER_ADDR";
}

std::string LaunchReading::master_host() const {
  const std::string text = find(master_addr()).value_or("");
  const bool is_bracketed = text.starts_with('[') && text.ends_with(']');
  std::string host = is_bracketed ? text.substr(1, text.size() - 2) : text;
  const bool has_port = std::ranges::count(host, ':') == 1;
  // A link-local address names an interface only with its zone.
  const bool lacks_zone = (host.starts_with("fe80:") || host.starts_with("FE80:")) &&
                          host.find('%') == std::string::npos;
  if (has_port || host.find_first_of(" /[],@*\t\r\n") != std::string::npos || host == "0.0.0.0" ||
      host == "::" || lacks_zone) {
    refuse("{}: got {}, expected {}", master_addr(), quote(text),
           lacks_zone ? "its interface too, for example fe80::1%eth0"
                      : "a host name or the address of one host, without a port");
  }
  return host;
}

std::span<const Launcher> launchers() {
  return kLaunchers;
}

const Launcher& launcher_of(const LaunchEnvironment& environment) {
  const auto* const row = std::ranges::find(kLaunchers, environment.launcher, &Launcher::name);
  return row == std::end(kLaunchers) ? kNoLauncher : *row;
}

bool is_mpi_world(const LaunchEnvironment& environment) {
  const std::string rank = std::to_string(environment.rank);
  const auto world_size = process_getenv(kMpirun.numbers.world_size);
  // srun --mpi=pmix tells only the rank: the size is known once MPI is initialised.
  return world_size ? *world_size == std::to_string(environment.world_size) &&
                          process_getenv(kMpirun.numbers.rank) == rank
                    : environment.world_size == 1 || process_getenv("PMIX_RANK") == rank;
}

SchedulerLimits scheduler_limits(const Variables& variables) {
  const LaunchReading reading{.variables = variables};
  const auto number = [&reading](const char* name) -> int64_t {
    return std::strtoll(reading.find(name).value_or("").c_str(), nullptr, 10);
  };
  std::string slot = read_text(reading.find("_CONDOR_MACHINE_AD").value_or(""));
  std::ranges::replace(slot, '=', ' ');
  const int64_t on_node = number("SLURM_CPUS_ON_NODE");
  // Numbers for all hosts of a job are upper limits, too.
  const int64_t of_tasks =
      number("SLURM_CPUS_PER_TASK") * std::max<int64_t>(number("SLURM_NTASKS"), 1);
  return {.cores = {on_node, of_tasks, number("NSLOTS"), number("PBS_NUM_PPN"), number("NCPUS"),
                    number("LSB_DJOB_NUMPROC"), number_after("Cpus", slot)},
          .memory_mib = {number("SLURM_MEM_PER_NODE"), number("SLURM_MEM_PER_CPU") * on_node,
                         number_after("Memory", slot)}};
}

}  // namespace ddp
