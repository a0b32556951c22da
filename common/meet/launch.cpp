// common/meet/launch.cpp - a table of launchers, from the innermost to the outermost:
// torchrun may run under srun, and only the innermost knows this process's rank.
#include "common/meet/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>
#include <utility>

#include "common/base/hash.hpp"
#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"
#include "common/meet/address.hpp"

namespace ddp {
namespace {

using Kind = StoreLocation::Kind;

// Sources of derived values.
constexpr const char* kOneNode = "derived: one node";
constexpr const char* kSlot = "derived: one process per slot";
constexpr const char* kPod = "derived: one process per pod";
constexpr const char* kUnknown = "derived: LOCAL_WORLD_SIZE is not set";
constexpr const char* kEvenRule = "derived: every node has as many processes as this one";

/// Names of a launcher's variables or flags. nullptr: the value is derived.
struct Launcher {
  const char* name;
  const char* shows;  ///< set if this launcher started this process
  const char* rank;
  const char* world_size;
  const char* local_rank = nullptr;
  const char* local_world_size = nullptr;
  const char* node_rank = nullptr;
  const char* num_nodes = nullptr;
};
// "environment": RANK was set by hand. SLURM_* without SLURM_STEP_ID is a batch script.
constexpr Launcher kLaunchers[] = {
    {"flags", "--rank", "--rank", "--world-size", "--local-rank", "--local-world-size"},
    {"spawn", "DDP_LAUNCHER", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "GROUP_RANK", "GROUP_WORLD_SIZE"},
    {"environment", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
     "GROUP_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr,
     "SLURM_NODEID", "SLURM_STEP_NUM_NODES"},
    {"htcondor", "_CONDOR_PROCNO", "_CONDOR_PROCNO", "_CONDOR_NPROCS"},
};

/// Variables of launchers that are not in the table, and leftovers of launchers in the table. They
/// say that this process is one of several if their number is over the one in front.
constexpr int64_t kAnyValue = std::numeric_limits<int64_t>::min();
constexpr std::pair<int64_t, const char*> kStrangers[] = {
    {1,
     "PMI_SIZE,MPI_LOCALNRANKS,MV2_COMM_WORLD_SIZE,FLUX_JOB_SIZE,JSM_NAMESPACE_SIZE,PET_NNODES,"
     "PADDLE_TRAINERS_NUM,DMLC_NUM_WORKER,AWS_BATCH_JOB_NUM_NODES,AZUREML_NODE_COUNT,SM_HOSTS,"
     "CLUSTER_SPEC,TF_CONFIG,PBS_TASKNUM,LSF_PM_TASKID,OMPI_COMM_WORLD_SIZE,_CONDOR_NPROCS,"
     "LWS_GROUP_SIZE"},
    {0, "NODE_RANK,PBS_VNODENUM,VC_TASK_INDEX"},
    {kAnyValue,
     "ALPS_APP_PE,PALS_RANKID,PMIX_RANK,JOB_COMPLETION_INDEX,WORLD_SIZE,LOCAL_RANK,"
     "LOCAL_WORLD_SIZE,--world-size,--local-rank,--local-world-size,--master-addr,--master-port"},
};

/// Ends of two names that say so together: HOROVOD_SIZE is over 1 beside HOROVOD_RANK.
constexpr std::pair<std::string_view, const char*> kSizesBesideRanks[] = {
    {"SIZE", "RANK"},           {"WORLD_SIZE", "RANK"},    {"NRANKS", "RANK"},
    {"NPROCS", "RANK"},         {"COUNT", "RANK"},         {"NNODES", "NODE_RANK"},
    {"NUM_NODES", "NODE_RANK"}, {"NODES_NUM", "NODE_RANK"}};

/// Variables that say only that there may be other processes, and what would start this one so.
constexpr std::pair<const char*, const char*> kHints[] = {
    {"SLURM_NTASKS,SLURM_NNODES", "srun"},
    {"PBS_NUM_NODES,NHOSTS", "mpirun"},
    {"MASTER_ADDR,MASTER_PORT", "RANK and WORLD_SIZE"}};

/// Number in a launcher's variable: 4 in "4", 2 in ["a", "b"], in {"worker": ["a", "b"]} and in
/// {"cluster": {"worker": ["a", "b"]}}; else the largest.
int64_t number_in(const std::string& value) {
  const auto json = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!json.is_structured()) {
    return json.is_number_integer() ? json.get<int64_t>() : std::numeric_limits<int64_t>::max();
  }
  int64_t hosts = 0;
  const auto flat = json.flatten();
  for (const auto& [path, host] : flat.items()) {
    hosts += host.is_string() && path.back() >= '0' && path.back() <= '9' ? 1 : 0;
  }
  return hosts;
}

/// Number and its source: a variable, a flag or a rule.
struct Sourced {
  int value = 0;
  std::string source;
};

/// @throws UsageError unless `got` < `limit`, naming both
void require_below(const Sourced& got, const Sourced& limit) {
  if (got.value >= limit.value) {
    refuse("{}: got {}, expected less than {} ({})", got.source, got.value, limit.source,
           limit.value);
  }
}

/// 8 hex digits, the same on every rank.
std::string digest_of(const std::string& text) {
  return Hash().update(text).hex().substr(0, 8);
}

/// Number of tasks on a node, from Slurm's list: "2(x3),1" -> 2 for nodes 0 to 2, 1 for node 3.
int tasks_on_node(const std::string& name, const std::string& text, int node) {
  static const std::regex count(R"((\d{1,6})(?:\(x([1-9]\d{0,5})\))?)");
  for (const std::string& item : split(text)) {
    std::smatch found;
    if (!std::regex_match(item, found, count)) {
      break;
    }
    node -= found[2].matched ? std::stoi(found[2]) : 1;
    if (node < 0) {
      return std::stoi(found[1]);
    }
  }
  refuse("{}: got {}, expected a count for each node, as 2(x3),1", name, quote(text));
}

/// @return `text` without the brackets of "[fd00::1]"
std::string checked_host(const std::string& source, const std::string& text) {
  const bool is_bracketed = text.starts_with('[') && text.ends_with(']');
  std::string host = is_bracketed ? text.substr(1, text.size() - 2) : text;
  const bool has_port = std::ranges::count(host, ':') == 1;
  // A link-local address names an interface only with its zone.
  const bool lacks_zone = (host.starts_with("fe80:") || host.starts_with("FE80:")) &&
                          host.find('%') == std::string::npos;
  if (has_port || host.find_first_of(" /[],@*\t\r\n") != std::string::npos || host == "0.0.0.0" ||
      host == "::" || lacks_zone) {
    refuse("{}: got {}, expected {}", source, quote(text),
           lacks_zone ? "its interface too, for example fe80::1%eth0"
                      : "a host name or the address of one host, without a port");
  }
  return host;
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

class LaunchReader {
 public:
  LaunchReader(const IdentityOptions& options, const Variables& variables) : variables_(variables) {
    for (const auto& [name, value] :
         {std::pair("--rank", options.rank), std::pair("--world-size", options.world_size),
          std::pair("--local-rank", options.local_rank),
          std::pair("--local-world-size", options.local_world_size),
          std::pair("--master-port", options.master_port)}) {
      if (value) {
        variables_[name] = std::to_string(*value);
      }
    }
    if (!options.master_addr.empty()) {
      variables_["--master-addr"] = options.master_addr;
    }
  }

  LaunchEnvironment read() {
    const auto* const row = std::ranges::find_if(
        kLaunchers, [this](const Launcher& launcher) { return started_by(launcher); });
    if (row == std::end(kLaunchers)) {
      read_alone();
      return found_;
    }
    found_.launcher = row->name;
    record("launcher", text(row->shows), row->shows);
    read_numbers(*row);
    // Launchers nest, so their restarts add up: under torchrun a requeued Slurm job counts too.
    for (const char* const name : {"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
      add_restarts(name);
    }
    if (found_.world_size > 1) {
      find_store();
      found_.store.prefix += fmt::format("/{}", found_.restart_count);
    }
    return found_;
  }

 private:
  bool started_by(const Launcher& launcher) const {
    // Slurm numbers the steps that run no tasks, such as salloc's shell, down from 2^32 - 1.
    constexpr uint32_t kFirstWithoutTasks = 0xfffffff0;
    const std::optional<std::string> shown = find(launcher.shows);
    const bool is_slurm = launcher.name == std::string_view("slurm");
    return shown &&
           !(is_slurm && parse_integer<uint32_t>(launcher.shows, *shown, 0) >= kFirstWithoutTasks);
  }

  void read_numbers(const Launcher& names) {
    const Sourced rank = need(names.rank, 0);
    const Sourced world_size = need(names.world_size, 1);
    require_below(rank, world_size);
    set("rank", found_.rank, rank);
    set("world_size", found_.world_size, world_size);
    const bool counts_nodes = names.num_nodes != nullptr && find(names.num_nodes);
    if (counts_nodes) {
      const Sourced node_rank = need(names.node_rank, 0);
      const Sourced num_nodes = need(names.num_nodes, 1);
      require_below(node_rank, num_nodes);
      set("node_rank", found_.node_rank, node_rank);
      set("num_nodes", found_.num_nodes, num_nodes);
    }
    const auto [local_rank, local_world_size] = local_numbers(names);
    require_below(local_rank, local_world_size);
    require_below(local_world_size, {world_size.value + 1, world_size.source + " + 1"});
    set("local_rank", found_.local_rank, local_rank);
    set("local_world_size", found_.local_world_size, local_world_size);
    if (!counts_nodes) {
      derive_nodes(local_world_size.source);
    }
  }

  /// @return local rank and local world size
  std::pair<Sourced, Sourced> local_numbers(const Launcher& names) const {
    if (found_.launcher == "htcondor") {
      return {{0, kSlot}, {1, kSlot}};
    }
    if (found_.launcher == "slurm") {
      const std::string name = "SLURM_STEP_TASKS_PER_NODE";
      return {need(names.local_rank, 0), {tasks_on_node(name, text(name), found_.node_rank), name}};
    }
    const std::string host = checked_host(master_addr(), find(master_addr()).value_or(""));
    // Kubeflow tells its master that the address is localhost, though the others are elsewhere.
    const bool is_pod = is_by_hand() && find("KUBERNETES_SERVICE_HOST");
    const bool is_elsewhere = found_.rank == 0 || !is_loopback_address(host);
    if (is_pod && is_elsewhere && !find(names.local_rank)) {
      return {{0, kPod}, {1, kPod}};
    }
    const bool is_one_node = found_.world_size == 1 || (is_loopback_address(host) && !is_pod);
    if (is_by_hand() && is_one_node) {
      return {number(names.local_rank, 0).value_or(Sourced{found_.rank, kOneNode}),
              number(names.local_world_size, 1).value_or(Sourced{found_.world_size, kOneNode})};
    }
    const Sourced local_rank = need(names.local_rank, 0);
    return {local_rank, is_by_hand() && !find(names.local_world_size)
                            ? Sourced{local_rank.value + 1, kUnknown}
                            : need(names.local_world_size, 1)};
  }

  void derive_nodes(const std::string& rule) {
    if (rule == kSlot || rule == kPod || rule == kUnknown) {
      set("node_rank", found_.node_rank, {found_.rank, rule});
      set("num_nodes", found_.num_nodes, {found_.world_size, rule});
      return;
    }
    // The last node may have fewer processes. Launchers fill nodes one by one, or in turns.
    const int local = found_.local_world_size;
    const int nodes = (found_.world_size + local - 1) / local;
    const bool fills = found_.rank % local == found_.local_rank;
    set("node_rank", found_.node_rank,
        {fills ? found_.rank / local : found_.rank % nodes, kEvenRule});
    set("num_nodes", found_.num_nodes, {nodes, kEvenRule});
  }

  bool is_by_hand() const { return found_.launcher == "flags" || found_.launcher == "environment"; }

  void find_store() {
    StoreLocation& store = found_.store;
    if (found_.launcher == "spawn") {
      store.kind = Kind::kFile;
      store.file = text("DDP_STORE_FILE");
      store.prefix = "spawn";
      record("store.file", store.file, "DDP_STORE_FILE");
      return;
    }
    const std::string job = job_name();
    store.kind = Kind::kTcp;
    store.server = 0;
    store.prefix = found_.launcher + (job.empty() ? "" : "/" + job);
    read_master();
    // Exactly "True", as in torch. The agent does not serve at an address from flags.
    if (find("TORCHELASTIC_USE_AGENT_STORE") == "True" && !variables_.contains("--master-addr") &&
        !variables_.contains("--master-port")) {
      store.kind = Kind::kAgentTcp;
      store.server = -1;
      record("store.kind", "the launcher serves it", "TORCHELASTIC_USE_AGENT_STORE");
    }
    if (found_.launcher == "htcondor" && store.host.empty() && store.port == 0) {
      find_shared_file(job);
    } else if (store.host.empty() || store.port == 0) {
      derive_master(job);
    }
  }

  std::string job_name() const {
    if (found_.launcher == "torchrun") {
      return text("TORCHELASTIC_RUN_ID");
    }
    if (found_.launcher == "slurm") {
      return text("SLURM_JOB_ID") + "." + text("SLURM_STEP_ID");
    }
    if (found_.launcher == "openmpi") {
      const std::string job =
          find(find("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid").value_or("");
      // Two containers of one host may have the same name. So beside it stands where mpirun
      // listens, for PMIx its daemon on each node.
      std::string listens = find("OMPI_MCA_orte_hnp_uri").value_or("");
      for (const auto& [name, value] : variables_) {
        listens += found_.num_nodes == 1 && name.starts_with("PMIX_SERVER_URI") ? value : "";
      }
      return listens.empty() ? job : fmt::format("{}.{}", job, digest_of(listens));
    }
    return found_.launcher == "htcondor" ? find("DDP_JOB_ID").value_or("") : "";
  }

  const char* master_addr() const {
    return variables_.contains("--master-addr") ? "--master-addr" : "MASTER_ADDR";
  }

  void read_master() {
    if (find(master_addr())) {
      found_.store.host = checked_host(master_addr(), text(master_addr()));
      record("store.host", found_.store.host, master_addr());
      const bool knows_nodes = found_.launcher == "openmpi" || found_.launcher == "slurm";
      if (knows_nodes && found_.num_nodes > 1 && is_loopback_address(found_.store.host)) {
        refuse("{}: got {} with {} nodes, expected the name or address of rank 0's node",
               master_addr(), found_.store.host, found_.num_nodes);
      }
    }
    const char* const port = variables_.contains("--master-port") ? "--master-port" : "MASTER_PORT";
    if (const std::optional<Sourced> given = number(port, 1, kMaxPort)) {
      set("store.port", found_.store.port, *given);
    }
  }

  /// Derives the store's place from the job's name (Open MPI, Slurm) and host list (Slurm).
  void derive_master(const std::string& job) {
    StoreLocation& store = found_.store;
    const bool is_slurm = found_.launcher == "slurm";
    const bool derives = is_slurm || (found_.launcher == "openmpi" && !job.empty());
    if (store.host.empty() && derives && found_.num_nodes == 1) {
      store.host = "127.0.0.1";
      record("store.host", store.host, kOneNode);
    } else if (store.host.empty() && is_slurm) {
      store.host = first_host("SLURM_STEP_NODELIST", text("SLURM_STEP_NODELIST"));
      record("store.host", store.host, "first of SLURM_STEP_NODELIST");
      // With --distribution=arbitrary rank 0 may run on another node.
      const bool serves = found_.node_rank == 0 && found_.local_rank == 0;
      store.server = serves ? found_.rank : -1;
      record("store.server", serves ? "this rank" : "another rank",
             "derived: the first process of the first node");
    }
    if (store.port == 0 && derives) {
      // Below the ephemeral range, in which a client's socket may hold it by chance.
      const std::string digest = digest_of(fmt::format("{}.{}", job, found_.restart_count));
      set("store.port", store.port,
          {20000 + static_cast<int>(std::stoul(digest, nullptr, 16) % 12000U),
           "derived from the job's name"});
    }
    if (store.host.empty() || store.port == 0) {
      refuse("{} is not set, expected the place where rank 0 serves the store{}",
             store.host.empty() ? "MASTER_ADDR" : "MASTER_PORT",
             found_.launcher == "openmpi" ? ": mpirun -x MASTER_ADDR -x MASTER_PORT" : "");
    }
  }

  /// HTCondor: rank 0 serves at its machine's name and publishes that in the job's folder.
  void find_shared_file(const std::string& job) {
    const std::string folder = text("_CONDOR_JOB_IWD");
    if (job.empty() || job.find('/') != std::string::npos) {
      refuse(
          "DDP_JOB_ID: got {}, expected environment = \"DDP_JOB_ID=$(ClusterId)\" in the "
          "submission file",
          quote(job));
    }
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    found_.store.kind = Kind::kSharedFile;
    found_.store.host = host.data();
    found_.store.file = fmt::format("{}/ddp-store-{}-{}", folder, geteuid(), job);
    record("store.file", found_.store.file, "_CONDOR_JOB_IWD, DDP_JOB_ID");
  }

  /// Without a launcher this process is alone. Refuses variables of unknown launchers.
  void read_alone() {
    for (const auto& [alone, variables] : kStrangers) {
      for (const std::string& variable : split(variables)) {
        refuse_number_over(alone, variable);
      }
    }
    for (const auto& [name, value] : variables_) {
      for (const auto& [size, rank] : kSizesBesideRanks) {
        if (name.ends_with(size) && find(name.substr(0, name.size() - size.size()) + rank)) {
          refuse_number_over(1, name);
        }
      }
    }
    for (const auto& [names, start_me] : kHints) {
      for (const std::string& name : split(names)) {
        note(name, find(name).value_or("1"), start_me);
      }
    }
    if (find("SLURM_JOB_ID")) {
      add_restarts("SLURM_RESTART_COUNT");
    }
  }

  void note(const std::string& name, const std::string& value, const char* start_me) {
    if (value != "1" && found_.note.empty()) {
      const bool is_number = value.find_first_not_of("0123456789") == std::string::npos;
      found_.note =
          fmt::format("{} is {}, but this process has no rank and trains alone; start me with {}",
                      name, is_number ? value : quote(value), start_me);
      record("note", found_.note, name);
    }
  }

  void refuse_number_over(int64_t alone, const std::string& variable) const {
    const std::optional<std::string> value = find(variable);
    if (value && number_in(*value) > alone) {
      refuse(
          "{}: got {}, which is for one of several processes; expected RANK, WORLD_SIZE, "
          "LOCAL_RANK, MASTER_ADDR and MASTER_PORT beside it",
          variable, quote(*value));
    }
  }

  void add_restarts(const char* name) {
    if (const std::optional<Sourced> count = number(name, 0)) {
      found_.restart_count += count->value;
      record("restart_count", std::to_string(count->value), name);
    }
  }

  // ---- Variables and flags.

  std::optional<std::string> find(const std::string& name) const {
    const auto variable = variables_.find(name);
    return variable != variables_.end() ? std::optional(variable->second) : std::nullopt;
  }

  /// @throws UsageError if it is unset or empty
  std::string text(const std::string& name) const {
    const std::optional<std::string> value = find(name);
    if (!value || value->empty()) {
      refuse("{} is {}, expected a value from {}", name, value ? "empty" : "not set",
             found_.launcher);
    }
    return *value;
  }

  std::optional<Sourced> number(const std::string& name, int minimum,
                                int maximum = kMaxWorldSize) const {
    const std::optional<std::string> value = find(name);
    return value ? std::optional(Sourced{parse_integer(name, *value, minimum, maximum), name})
                 : std::nullopt;
  }

  Sourced need(const std::string& name, int minimum) const {
    const std::optional<Sourced> value = number(name, minimum);
    if (!value) {
      refuse("{} is not set, expected an integer >= {} next to the other variables ({})", name,
             minimum, found_.launcher);
    }
    return *value;
  }

  void record(const std::string& what, const std::string& value, const std::string& source) {
    found_.evidence.push_back({what, value, source});
  }
  void set(const std::string& what, int& field, const Sourced& number) {
    record(what, std::to_string(number.value), number.source);
    field = number.value;
  }

  Variables variables_;  ///< and flags, as "--rank"
  LaunchEnvironment found_;
};

}  // namespace

std::optional<std::string> process_getenv(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Variables process_variables() {
  Variables variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

LaunchEnvironment read_launch_environment(const IdentityOptions& options,
                                          const Variables& variables) {
  return LaunchReader(options, variables).read();
}

}  // namespace ddp
