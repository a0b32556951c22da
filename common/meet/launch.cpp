#include "common/meet/launch.hpp"

#include <nlohmann/json.hpp>

#include "common/base/parse.hpp"
#include "common/meet/address.hpp"

namespace ddp {
namespace {

using Kind = StoreLocation::Kind;

/// Variables of launchers that have no row, and leftovers of launchers that have one: this process
/// is one of several if their number is over the one in front. All variables that begin as one does
/// up to its * are the same launcher's.
constexpr int64_t kAnyValue = std::numeric_limits<int64_t>::min();
constexpr std::pair<int64_t, const char*> kUnsupported[] = {
    {1,
     "PMI_*SIZE,MPI_LOCAL*NRANKS,MV2_COMM_WORLD_*SIZE,FLUX_*JOB_SIZE,JSM_NAMESPACE_*SIZE,"
     "PET_*NNODES,PADDLE_*TRAINERS_NUM,DMLC_*NUM_WORKER,AWS_BATCH_JOB_NUM_NODES,"
     "AZUREML_NODE_COUNT,SM_HOSTS,CLUSTER_SPEC,TF_CONFIG,PBS_TASKNUM,LSF_PM_TASKID,"
     "OMPI_COMM_WORLD_SIZE,_CONDOR_NPROCS,LWS_*GROUP_SIZE"},
    {0, "NODE_RANK,PBS_VNODENUM,VC_TASK_INDEX"},
    {kAnyValue,
     "ALPS_APP_PE,PALS_*RANKID,PMIX_*RANK,JOB_COMPLETION_INDEX,WORLD_SIZE,LOCAL_RANK,"
     "LOCAL_WORLD_SIZE,--world-size,--local-rank,--local-world-size,--master-addr,--master-port"},
};

/// Ends of two names that say together that there are several processes: HOROVOD_SIZE is over 1
/// beside HOROVOD_RANK.
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

/// Without a launcher this process is alone. Refuses variables of unknown launchers.
void refuse_unsupported(const LaunchReading& reading) {
  const auto refuse_over = [&reading](int64_t most_alone, const std::string& variable) {
    const std::optional<std::string> value = reading.find(variable);
    if (value && number_in(*value) > most_alone) {
      refuse(
          "{}: got {}, which is for one of several processes; expected RANK, WORLD_SIZE, "
          "LOCAL_RANK, MASTER_ADDR and MASTER_PORT beside it",
          variable, quote(*value));
    }
  };
  for (const auto& [most_alone, names] : kUnsupported) {
    for (std::string name : split(names)) {
      std::erase(name, '*');
      refuse_over(most_alone, name);
    }
  }
  for (const auto& [name, value] : reading.variables) {
    for (const auto& [size, rank] : kSizesBesideRanks) {
      if (name.ends_with(size) && reading.find(name.substr(0, name.size() - size.size()) + rank)) {
        refuse_over(1, name);
      }
    }
  }
}

void note_hints(LaunchReading& reading) {
  std::string& note = reading.found.note;
  for (const auto& [names, start_me] : kHints) {
    for (const std::string& name : split(names)) {
      const std::string value = reading.find(name).value_or("1");
      if (value != "1" && note.empty()) {
        const bool is_number = value.find_first_not_of("0123456789") == std::string::npos;
        note =
            fmt::format("{} is {}, but this process has no rank and trains alone; start me with {}",
                        name, is_number ? value : quote(value), start_me);
        reading.record("note", note, name);
      }
    }
  }
}

/// @throws UsageError unless `got` < `limit`, naming both
void require_below(const SourcedNumber& got, const SourcedNumber& limit) {
  if (got.value >= limit.value) {
    refuse("{}: got {}, expected less than {} ({})", got.source, got.value, limit.source,
           limit.value);
  }
}

/// The last node may have fewer processes. Launchers fill nodes one by one, or in turns.
void derive_nodes(LaunchReading& reading, const LocalNumbers& local) {
  LaunchEnvironment& found = reading.found;
  const std::string rule = local.is_own_node
                               ? local.world_size.source
                               : "derived: every node has as many processes as this one";
  const int size = local.is_own_node ? 1 : found.local_world_size;
  const int nodes = (found.world_size + size - 1) / size;
  const bool fills = found.rank % size == found.local_rank;
  reading.set("node_rank", found.node_rank, {fills ? found.rank / size : found.rank % nodes, rule});
  reading.set("num_nodes", found.num_nodes, {nodes, rule});
}

void read_numbers(LaunchReading& reading) {
  const NamesOfNumbers& names = reading.launcher->numbers;
  LaunchEnvironment& found = reading.found;
  const SourcedNumber rank = reading.need(names.rank, 0);
  const SourcedNumber world_size = reading.need(names.world_size, 1);
  require_below(rank, world_size);
  reading.set("rank", found.rank, rank);
  reading.set("world_size", found.world_size, world_size);
  const bool counts_nodes = reading.find(names.num_nodes).has_value();
  if (counts_nodes) {
    const SourcedNumber node_rank = reading.need(names.node_rank, 0);
    const SourcedNumber num_nodes = reading.need(names.num_nodes, 1);
    require_below(node_rank, num_nodes);
    reading.set("node_rank", found.node_rank, node_rank);
    reading.set("num_nodes", found.num_nodes, num_nodes);
  }
  const LocalNumbers local = reading.launcher->local_numbers != nullptr
                                 ? reading.launcher->local_numbers(reading)
                                 : LocalNumbers{reading.need(names.local_rank, 0),
                                                reading.need(names.local_world_size, 1)};
  require_below(local.rank, local.world_size);
  require_below(local.world_size, {world_size.value + 1, world_size.source + " + 1"});
  reading.set("local_rank", found.local_rank, local.rank);
  reading.set("local_world_size", found.local_world_size, local.world_size);
  if (!counts_nodes) {
    derive_nodes(reading, local);
  }
}

void read_master(LaunchReading& reading) {
  StoreLocation& store = reading.found.store;
  const std::string name = reading.master_addr();
  if (reading.find(name)) {
    reading.text(name);  // not empty
    store.host = reading.master_host();
    reading.record("store.host", store.host, name);
    const int nodes = reading.found.num_nodes;
    if (reading.launcher->knows_nodes && nodes > 1 && is_loopback_address(store.host)) {
      refuse("{}: got {} with {} nodes, expected the name or address of rank 0's node", name,
             store.host, nodes);
    }
  }
  const char* const flag = "--master-port";
  if (const auto given = reading.number(reading.find(flag) ? flag : "MASTER_PORT", 1, kMaxPort)) {
    reading.set("store.port", store.port, *given);
  }
}

void find_store(LaunchReading& reading) {
  const Launcher& launcher = *reading.launcher;
  StoreLocation& store = reading.found.store;
  if (*launcher.store_file != '\0') {
    store.kind = Kind::kFile;
    store.file = reading.text(launcher.store_file);
    store.prefix = launcher.name;
    reading.record("store.file", store.file, launcher.store_file);
    return;
  }
  const std::string job = launcher.job != nullptr ? launcher.job(reading) : "";
  store.kind = Kind::kTcp;
  store.server = 0;
  store.prefix = launcher.name + (job.empty() ? "" : "/" + job);
  read_master(reading);
  // Exactly "True", as in torch. The agent does not serve at an address from flags.
  const bool has_flag = reading.find("--master-addr") || reading.find("--master-port");
  if (reading.find("TORCHELASTIC_USE_AGENT_STORE") == "True" && !has_flag) {
    store.kind = Kind::kAgentTcp;
    store.server = -1;
    reading.record("store.kind", "the launcher serves it", "TORCHELASTIC_USE_AGENT_STORE");
  }
  if (launcher.find_store != nullptr && (store.host.empty() || store.port == 0)) {
    launcher.find_store(reading, job);
  }
  if (store.kind != Kind::kSharedFile && (store.host.empty() || store.port == 0)) {
    refuse("{} is not set, expected the place where rank 0 serves the store{}",
           store.host.empty() ? "MASTER_ADDR" : "MASTER_PORT", launcher.to_set_master);
  }
}

}  // namespace

LaunchEnvironment read_launch_environment(const IdentityOptions& options,
                                          const Variables& variables) {
  LaunchReading reading{.variables = variables};
  LaunchEnvironment& found = reading.found;
  for (const auto& [name, value] :
       {std::pair("--rank", options.rank), std::pair("--world-size", options.world_size),
        std::pair("--local-rank", options.local_rank),
        std::pair("--local-world-size", options.local_world_size),
        std::pair("--master-port", options.master_port)}) {
    if (value) {
      reading.variables[name] = std::to_string(*value);
    }
  }
  if (!options.master_addr.empty()) {
    reading.variables["--master-addr"] = options.master_addr;
  }
  const auto row = std::ranges::find_if(launchers(), [&reading](const Launcher& launcher) {
    const std::optional<std::string> shown = reading.find(launcher.shows);
    return shown && (launcher.recognises == nullptr || launcher.recognises(*shown));
  });
  const bool is_alone = row == launchers().end();
  if (is_alone) {
    refuse_unsupported(reading);
    note_hints(reading);
  } else {
    reading.launcher = &*row;
    found.launcher = row->name;
    reading.record("launcher", reading.text(row->shows), row->shows);
    read_numbers(reading);
  }
  // Launchers nest, so their restarts add up: under torchrun a requeued Slurm job counts too.
  for (const Launcher& outer : launchers()) {
    const bool counts = !is_alone || reading.find(outer.batch_job);
    if (const auto restarts = reading.number(counts ? outer.restart_count : "", 0)) {
      found.restart_count += restarts->value;
      reading.record("restart_count", std::to_string(restarts->value), restarts->source);
    }
  }
  if (found.world_size > 1) {
    find_store(reading);
    found.store.prefix += fmt::format("/{}", found.restart_count);
  }
  return found;
}

bool is_identity_variable(std::string_view variable) {
  const auto begins = [variable](const std::string& beginnings) {
    return std::ranges::any_of(split(beginnings), [variable](const std::string& beginning) {
      return !beginning.empty() && variable.starts_with(beginning);
    });
  };
  const auto is_of = [&begins](const Launcher& row) {
    const auto& [rank, world_size, local_rank, local_size, node_rank, num_nodes] = row.numbers;
    return begins(fmt::format("{}=,{}=,{}=,{}=,{}=,{}=,{}=,{}=,{}", row.shows, rank, world_size,
                              local_rank, local_size, node_rank, num_nodes, row.store_file,
                              row.of_ranks)) ||
           (process_getenv(row.shows) && begins(row.settings));
  };
  const auto is_unsupported = [&begins](const auto& strangers) {
    return std::ranges::any_of(split(strangers.second), [&begins](const std::string& name) {
      return begins(name.find('*') != std::string::npos ? name.substr(0, name.find('*'))
                                                        : name + "=");
    });
  };
  return std::ranges::any_of(launchers(), is_of) ||
         std::ranges::any_of(kUnsupported, is_unsupported);
}

}  // namespace ddp
