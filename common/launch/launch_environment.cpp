// common/launch/launch_environment.cpp - who am I: one reader per launcher; the first that finds
// its variables decides.
//
// Note [Innermost launcher]: launchers nest (torchrun under srun, mpirun in a Slurm job), and each
// leaves its variables. The order goes from the innermost to the outermost: what started this very
// process knows best. A value is compared only with others of the same launcher. Flux and Hydra may
// start their own daemons by a Slurm step, so they come before it. srun sets PMI_* and PALS_* where
// an MPI asks for them, Flux and PALS set PMI_*: so PALS comes after both, and PMI_* alone names
// nobody.
#include "common/launch/launch_environment.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string_view>

#include "common/base/parse.hpp"
#include "common/base/private_file.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/counting_launchers.hpp"
#include "common/launch/network.hpp"

namespace ddp {

namespace {

constexpr const char* kEvenRule = "derived: every node has as many processes as this one";

/// A number and the variable or flag it came from, so that a contradiction can name both.
struct Sourced {
  int value = 0;
  std::string source;
};

struct Identity {
  Sourced rank;
  Sourced world_size;
  Sourced local_rank;
  Sourced local_world_size;
};

/// @throws UsageError unless it `holds`, naming both sources
/// @param relation of `got` to `other`, "less than"
void require(bool holds, const Sourced& got, const char* relation, const Sourced& other) {
  if (!holds) {
    refuse("{}: got {}, expected {} {} ({})", got.source, got.value, relation, other.source,
           other.value);
  }
}

void require_below(const Sourced& got, const Sourced& limit) {
  require(got.value < limit.value, got, "less than", limit);
}

/// False for what no look-up could make an address of: a URL, an address with its port or of four
/// too large numbers.
bool is_host_or_address(const std::string& host) {
  constexpr size_t kLongestName = 253;
  const std::string numbers = "0123456789.";
  const std::string words = numbers + "-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const size_t percent = host.find('%');  // "fe80::1%eth0": the link
  const std::string address = host.substr(0, percent);
  const std::string link = percent == std::string::npos ? "any" : host.substr(percent + 1);
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (address.find(':') != std::string::npos) {
    return inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1 && !link.empty() &&
           link.find_first_not_of(words) == std::string::npos;
  }
  if (host.find_first_not_of(numbers) == std::string::npos) {
    return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1;
  }
  return host.find_first_not_of(words) == std::string::npos && host.front() != '-' &&
         host.front() != '.' && host.size() <= kLongestName;
}

/// "2(x3),1" -> {2, 2, 2, 1}
std::vector<int> expand_tasks_per_node(const std::string& name, const std::string& text) {
  constexpr int kMostNodes = 65536;
  std::vector<int> tasks;
  std::istringstream items(text + ",");
  for (std::string item; std::getline(items, item, ',');) {
    const size_t open = item.find("(x");
    const bool closed = item.ends_with(')');
    if ((open != std::string::npos) != closed) {
      refuse("{}: got {}, expected counts as in 2(x3),1", name, quote(text));
    }
    const std::string times = closed ? item.substr(open + 2, item.size() - open - 3) : "1";
    const auto nodes = parse_integer<size_t>(name, times, 1, kMostNodes);
    tasks.insert(tasks.end(), nodes, parse_integer<int>(name, item.substr(0, open), 0));
    if (tasks.size() > kMostNodes) {
      refuse("{}: got {}, expected at most 65536 nodes", name, quote(text));
    }
  }
  return tasks;
}

class LaunchReader {
 public:
  LaunchReader(const Options& options, const GetEnv& getenv) : options_(options), getenv_(getenv) {}

  LaunchEnvironment read() {
    read_innermost();
    const std::string& launcher = found_.launcher;
    if (set("SLURM_STEP_ID") && launcher != "slurm" && launcher != "flags") {
      record("outer", *getenv_("SLURM_STEP_ID"), "SLURM_STEP_ID");
    }
    if (set("SLURM_JOB_ID") && launcher != "slurm" && launcher != "none") {
      add_restarts("SLURM_RESTART_COUNT");
    }
    if (found_.world_size == 1) {
      found_.store = StoreLocation();  // nobody to meet
    } else {
      if (found_.store.is_on_network()) {
        find_store_key();
      }
      found_.store.prefix += fmt::format("/{}", found_.restart_count);
    }
    return found_;
  }

 private:
  void read_innermost() {
    struct Launcher {
      const char* name;
      std::vector<const char*> variables;  ///< any of them shows that it started this process
      void (LaunchReader::*read)();
    };
    static const std::vector<Launcher> kFromInnermost = {
        {"spawn", {"DDP_LAUNCHER"}, &LaunchReader::read_spawn},
        {"torchrun", {"RANK", "TORCHELASTIC_RUN_ID"}, &LaunchReader::read_torchrun},
        {"openmpi",
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE"},
         &LaunchReader::read_openmpi},
        {"flux",
         {"FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE"},
         &LaunchReader::read_counting<kFlux>},
        {"hydra", {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, &LaunchReader::read_counting<kHydra>},
        {"slurm", {"SLURM_STEP_ID"}, &LaunchReader::read_slurm},
        {"jsrun",
         {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
          "JSM_NAMESPACE_LOCAL_SIZE"},
         &LaunchReader::read_counting<kJsrun>},
        {"pals", {"PALS_RANKID", "PALS_LOCAL_RANKID"}, &LaunchReader::read_counting<kPals>},
        {"htcondor", {"_CONDOR_PROCNO", "_CONDOR_NPROCS"}, &LaunchReader::read_htcondor},
    };
    if (options_.rank || options_.world_size) {
      found_.launcher = "flags";
      return read_flags();
    }
    for (const Launcher& launcher : kFromInnermost) {
      if (std::any_of(launcher.variables.begin(), launcher.variables.end(),
                      [this](const char* name) { return set(name); }) &&
          !(launcher.name == std::string_view("hydra") && in_a_step_of_its_rank())) {
        found_.launcher = launcher.name;
        return (this->*launcher.read)();
      }
    }
    read_alone();
  }

  // ---- The launchers.

  void read_flags() {
    const std::optional<Sourced> rank = flag(options_.rank, "--rank");
    const std::optional<Sourced> world_size = flag(options_.world_size, "--world-size");
    if (!rank || !world_size) {
      refuse("{} is not set, expected --rank and --world-size together",
             rank ? "--world-size" : "--rank");
    }
    if (world_size->value > 1) {
      require_master(
          fmt::format("--master-addr and --master-port with --world-size {}", world_size->value));
    }
    set_identity_by_hand(*rank, *world_size, flag(options_.local_rank, "--local-rank"),
                         flag(options_.local_world_size, "--local-world-size"));
    set_even_nodes();
    found_.store.prefix = "flags";
  }

  void read_spawn() {
    const std::string marker = *getenv_("DDP_LAUNCHER");
    if (marker != "spawn") {
      refuse("DDP_LAUNCHER: got {}, expected \"spawn\" or unset", quote(marker));
    }
    if (set("TORCHELASTIC_RUN_ID")) {
      throw UsageError(
          "DDP_LAUNCHER: got \"spawn\" next to TORCHELASTIC_RUN_ID, expected one of the two, from "
          "the launcher that started this process");
    }
    set_identity({need("RANK", 0), need("WORLD_SIZE", 1), need("LOCAL_RANK", 0),
                  need("LOCAL_WORLD_SIZE", 1)});
    const std::string rule = "derived: spawn stays on one node";
    set_nodes({0, rule}, {1, rule});
    found_.store.kind = StoreLocation::Kind::kInheritedFile;
    record("store.fd", need("DDP_STORE_FD", 3), &found_.store.fd);
    found_.store.prefix = "spawn";
    add_restarts("TORCHELASTIC_RESTART_COUNT");
  }

  /// torchrun, or the same variables set by hand.
  void read_torchrun() {
    const std::optional<std::string> run_id = text("TORCHELASTIC_RUN_ID");
    found_.launcher = run_id ? "torchrun" : "environment";
    const Sourced rank = need("RANK", 0);
    const Sourced world_size = need("WORLD_SIZE", 1);
    if (run_id) {
      record("launcher", *run_id, "TORCHELASTIC_RUN_ID");
    } else {
      agrees_with("OMPI_COMM_WORLD_SIZE", world_size);
      agrees_with("OMPI_COMM_WORLD_RANK", rank);
    }
    if (run_id || world_size.value > 1) {
      require_master("the address of the store next to RANK and WORLD_SIZE");
    }
    if (run_id) {
      set_identity({rank, world_size, need("LOCAL_RANK", 0), need("LOCAL_WORLD_SIZE", 1)});
    } else {
      set_identity_by_hand(rank, world_size, number("LOCAL_RANK", 0),
                           number("LOCAL_WORLD_SIZE", 1));
      if (set("SLURM_STEP_ID")) {
        refuse_rank_of_another("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
      }
      refuse_rank_of_another("_CONDOR_PROCNO", "_CONDOR_NPROCS");
      for (const CountingLauncher* const launcher : kCountingLaunchers) {
        refuse_rank_of_another(launcher->rank, launcher->world_size);
      }
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

  void read_openmpi() {
    set_identity({need("OMPI_COMM_WORLD_RANK", 0), need("OMPI_COMM_WORLD_SIZE", 1),
                  need("OMPI_COMM_WORLD_LOCAL_RANK", 0), need("OMPI_COMM_WORLD_LOCAL_SIZE", 1)});
    agrees_with_exported(identity_);
    // OMPI_COMM_WORLD_NODE_RANK is no node's number but a local rank.
    const int local = found_.local_world_size;
    derive_nodes();

    std::optional<std::string> job = text("PMIX_NAMESPACE");
    job = job ? job : text("OMPI_MCA_ess_base_jobid");
    found_.store.prefix = "openmpi/" + job.value_or("job");
    const std::string pass = "mpirun -x MASTER_ADDR -x MASTER_PORT";
    if (knows_store(pass)) {
      return;
    }
    if (local != found_.world_size) {
      refuse(
          "MASTER_ADDR is not set, expected {} because the ranks are on "
          "several nodes (OMPI_COMM_WORLD_LOCAL_SIZE {} of {})",
          pass, local, found_.world_size);
    }
    if (!job) {
      throw UsageError("PMIX_NAMESPACE is not set, expected the job's name from mpirun, or " +
                       pass);
    }
    set_meeting_file(
        {"TMPDIR", "OMPI_FILE_LOCATION", "OMPI_MCA_orte_jobfam_session_dir", "PMIX_SERVER_TMPDIR"},
        *job);
  }

  void read_slurm() {
    // A step may be smaller than its job, so the step's variables come first.
    const auto of_step = [this](const char* step, const char* job) {
      return set(step) ? step : job;
    };
    const std::string step_id = *getenv_("SLURM_STEP_ID");
    parse_integer<uint32_t>("SLURM_STEP_ID", step_id, 0);
    const std::string job = text("SLURM_JOB_ID").value_or("");
    parse_integer<uint64_t>("SLURM_JOB_ID", job, 1);
    const std::string step = job + "." + step_id;
    record("launcher", step, "SLURM_STEP_ID");
    const Sourced world_size = need(of_step("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), 1);
    const Sourced num_nodes = need(of_step("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), 1);
    const Sourced node_rank = need("SLURM_NODEID", 0);
    require_below(node_rank, num_nodes);

    const std::string per_node = of_step("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
    const std::string counts = text(per_node).value_or("");
    const std::vector<int> tasks = expand_tasks_per_node(per_node, counts);
    const int64_t sum = std::accumulate(tasks.begin(), tasks.end(), int64_t{0});
    if (tasks.size() != static_cast<size_t>(num_nodes.value) || sum != world_size.value) {
      refuse("{}: got {}, expected {} nodes with {} tasks together", per_node, quote(counts),
             num_nodes.value, world_size.value);
    }
    set_identity({need("SLURM_PROCID", 0),
                  world_size,
                  need("SLURM_LOCALID", 0),
                  {tasks[static_cast<size_t>(node_rank.value)], per_node}});
    record_nodes(node_rank, num_nodes);
    agrees_with_exported(identity_);
    add_restarts("SLURM_RESTART_COUNT");
    found_.store.prefix = "slurm/" + step;
    if (find_master() || found_.world_size == 1) {
      return;
    }
    if (found_.num_nodes == 1 && found_.store.host.empty() && found_.store.port == 0) {
      set_meeting_file({"TMPDIR"}, fmt::format("{}.{}", step, found_.restart_count));
      return;
    }
    if (found_.store.host.empty()) {
      const std::string name = of_step("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
      const std::vector<std::string> hosts = hosts_of(name);
      if (hosts.size() != tasks.size()) {
        refuse("{}: got {} nodes, expected {} ({})", name, hosts.size(), num_nodes.source,
               num_nodes.value);
      }
      found_.store.host = hosts.front();
      found_.store.peer = hosts.back();
      record("store.host", hosts.front(), "first of " + name);
    }
    if (found_.store.port == 0) {
      // FNV-1a. Below the ephemeral range, where a client's socket could hold the port by chance.
      uint32_t hash = 2166136261U;
      for (const char c : fmt::format("{}.{}", step, found_.restart_count)) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
      }
      found_.store.port = 20000 + static_cast<int>(hash % 12000U);
      record("store.port", {found_.store.port, "derived from job, step and restart"});
    }
  }

  /// A launcher that tells each process its number, and no place to meet.
  template <const CountingLauncher& kLauncher>
  void read_counting() {
    const Sourced rank = need(kLauncher.rank, 0);
    const Sourced world_size = need(kLauncher.world_size, 1);
    set_identity({rank, world_size, need(kLauncher.local_rank, 0),
                  local_world_size_of(kLauncher, world_size)});
    derive_nodes();
    agrees_with_exported(identity_);
    const std::string job = job_of(kLauncher);
    found_.store.prefix = fmt::format("{}/{}", kLauncher.name, job.empty() ? "job" : job);
    if (knows_store(kLauncher.pass)) {
      return;
    }
    if (found_.local_world_size != found_.world_size) {
      refuse(
          "MASTER_ADDR is not set, expected {} because the ranks are on several nodes ({} {} of "
          "{})",
          kLauncher.pass, identity_.local_world_size.source, found_.local_world_size,
          found_.world_size);
    }
    if (job.empty()) {
      refuse("{} is not set, expected the job's name from {}, or {}", kLauncher.job.back(),
             kLauncher.name, kLauncher.pass);
    }
    set_meeting_file({"TMPDIR", kLauncher.folder}, job);
  }

  Sourced local_world_size_of(const CountingLauncher& launcher, const Sourced& world_size) const {
    for (const char* const name : launcher.local_world_size) {
      if (set(name) || name == launcher.local_world_size.back()) {
        return need(name, 1);
      }
    }
    const Sourced nodes = need(launcher.num_nodes, 1);
    if (world_size.value % nodes.value != 0) {
      refuse("{}: got {}, expected a multiple of {} ({}), as {} does not say who shares a node",
             world_size.source, world_size.value, nodes.source, nodes.value, launcher.name);
    }
    return {world_size.value / nodes.value, nodes.value == 1 ? nodes.source : kEvenRule};
  }

  /// The name of this start of the job, the same on every node; empty if nobody says it.
  std::string job_of(const CountingLauncher& launcher) const {
    std::string job;
    for (const char* const name : launcher.job) {
      const std::optional<std::string> part = text(name);
      if (!part) {
        const bool one_proxy = found_.local_world_size == found_.world_size;
        return &launcher == &kHydra && one_proxy ? hydra_proxy().value_or("") : "";
      }
      job += (job.empty() ? "" : "-") + *part;
    }
    return job;
  }

  /// A script that a rank of Hydra runs may call srun. Hydra's own step has no more tasks than
  /// Hydra has ranks.
  bool in_a_step_of_its_rank() const {
    const std::optional<Sourced> ranks = number(kHydra.world_size, 1);
    const std::optional<Sourced> tasks = number("SLURM_STEP_NUM_TASKS", 1);
    return set("SLURM_STEP_ID") && ranks && tasks && tasks->value > ranks->value;
  }

  void read_htcondor() {
    const Sourced rank = need("_CONDOR_PROCNO", 0);
    const Sourced world_size = need("_CONDOR_NPROCS", 1);
    // Each process has a slot of its own, with only its own GPUs visible, even next to another one.
    const std::string rule = "derived: one process per slot";
    const std::string slot = "HTCondor (one process per slot)";
    set_identity({rank, world_size, {0, rule}, {1, rule}});
    set_nodes({rank.value, rule}, {world_size.value, rule});
    agrees_with_exported({rank, world_size, {0, slot}, {1, slot}});
    const std::optional<std::string> job = text("DDP_JOB_ID");
    found_.store.prefix = "htcondor/" + job.value_or("job");
    if (knows_store("MASTER_ADDR and MASTER_PORT together")) {
      return;
    }
    const std::string folder = text("_CONDOR_JOB_IWD").value_or("");
    if (!folder.starts_with('/')) {
      refuse("_CONDOR_JOB_IWD: got {}, expected the job's folder, which all its processes see",
             quote(folder));
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
    set_file(StoreLocation::Kind::kSharedFile,
             fmt::format("{}/ddp-store-{}-{}", folder, geteuid(), as_file_name(*job)));
  }

  /// Nobody started this process as one of several; or somebody did and does not say which.
  void read_alone() {
    for (const char* const name :
         {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}) {
      if (set(name)) {
        refuse("RANK is not set, expected it next to {}", name);
      }
    }
    if (options_.local_rank || options_.local_world_size || !options_.master_addr.empty() ||
        options_.master_port) {
      throw UsageError(
          "--rank is not set, expected --rank and --world-size with the other identity flags");
    }
    refuse_unknown_launchers();
    note_who_could_start_more();
    if (!set("SLURM_JOB_ID")) {
      return;
    }
    record("note", "a Slurm job, but no step: srun starts its tasks", "SLURM_JOB_ID");
    for (const char* const name : {"SLURM_NTASKS", "SLURM_NNODES"}) {
      const int size = number(name, 1).value_or(Sourced{}).value;
      if (size > 1 && found_.note.empty()) {
        found_.note = fmt::format(
            "{} is {}, but this process is in no step of the job and trains alone; start me with "
            "srun",
            name, size);
      }
    }
    add_restarts("SLURM_RESTART_COUNT");
  }

  /// Without this, each of their processes would train alone.
  void refuse_unknown_launchers() const {
    for (const char* const name : {"PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
      if (const int size = number(name, 1).value_or(Sourced{}).value; size > 1) {
        refuse(
            "{}: got {}, expected torchrun, srun, Open MPI's mpirun or a Hydra that sets "
            "MPI_LOCALRANKID to start several processes",
            name, size);
      }
    }
    const auto refuse_unless = [this](const char* name, const char* alone, const char* expected) {
      std::string value = getenv_(name).value_or(alone);
      value.erase(0, value.find_first_not_of('0'));  // PBS fills up with them
      if (value != alone) {
        refuse("{}: got {}, expected {}, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT", name,
               quote(*getenv_(name)), expected);
      }
    };
    // The first two tell a process its number, and not of how many.
    refuse_unless("PMIX_RANK", "unset", "what Open MPI's mpirun sets next to it");
    refuse_unless("PBS_TASKNUM", "1", "1, the script, which mpiexec starts processes from");
    refuse_unless("PET_NNODES", "1", "1, or torchrun in each pod");
  }

  /// In a batch script, or as one of many pods of a job that need not know one another.
  void note_who_could_start_more() {
    for (const auto& [name, starter] : std::vector<std::pair<const char*, const char*>>{
             {"PBS_NUM_NODES", "mpiexec"},
             {"PBS_NP", "mpiexec"},
             {"LSB_DJOB_NUMPROC", "jsrun or mpiexec"}}) {
      const std::optional<Sourced> count = number(name, 1);
      if (count && count->value > 1) {
        record("note", *count);
        found_.note = fmt::format(
            "{} is {}, but no launcher started this process, which trains alone; start me with {}",
            name, count->value, starter);
      }
    }
    if (const std::optional<std::string> index = getenv_("JOB_COMPLETION_INDEX")) {
      record("note", *index, "JOB_COMPLETION_INDEX");
      found_.note = fmt::format(
          "JOB_COMPLETION_INDEX is {}, one pod of an Indexed Job, which trains alone; with RANK, "
          "WORLD_SIZE, MASTER_ADDR and MASTER_PORT its pods train together",
          quote(*index));
    }
  }

  // ---- Which rank, and on which node.

  void set_identity(const Identity& identity) {
    const auto& [rank, world_size, local_rank, local_world_size] = identity;
    require_below(rank, world_size);
    require(local_world_size.value <= world_size.value, local_world_size, "at most", world_size);
    require_below(local_rank, local_world_size);
    // Every launcher counts the ranks of a node in the order of their global ranks.
    require(rank.value >= local_rank.value, rank, "at least", local_rank);
    identity_ = identity;
    record("rank", rank, &found_.rank);
    record("world_size", world_size, &found_.world_size);
    record("local_rank", local_rank, &found_.local_rank);
    record("local_world_size", local_world_size, &found_.local_world_size);
  }

  /// Started by hand, with flags or plain variables: who is on which node is known only if it is
  /// said, or if the store is at a loopback address.
  void set_identity_by_hand(const Sourced& rank, const Sourced& world_size,
                            std::optional<Sourced> local_rank,
                            std::optional<Sourced> local_world_size) {
    const std::string& host = found_.store.host;
    if (world_size.value == 1 || host == "localhost" || is_loopback_address(host)) {
      const std::string rule = "derived: one node";
      local_rank = local_rank.value_or(Sourced{rank.value, rule});
      local_world_size = local_world_size.value_or(Sourced{world_size.value, rule});
    } else if (!local_rank && !local_world_size && is_alone_in_its_pod()) {
      const std::string rule = "derived: one process per pod";
      found_.launcher = "kubernetes";
      record("launcher", "a pod", "KUBERNETES_SERVICE_HOST");
      local_rank = Sourced{0, rule};
      local_world_size = Sourced{1, rule};
    } else if (!local_rank || !local_world_size) {
      const bool flags = found_.launcher == "flags";
      refuse(
          "{} is not set, expected it because the store is on another address ({}) than localhost",
          !local_rank ? (flags ? "--local-rank" : "LOCAL_RANK")
                      : (flags ? "--local-world-size" : "LOCAL_WORLD_SIZE"),
          host);
    }
    set_identity({rank, world_size, *local_rank, *local_world_size});
  }

  /// As an operator of Kubernetes starts it, with RANK and WORLD_SIZE and nothing else.
  /// @throws UsageError if torchrun is wanted in each pod: then RANK is the pod's
  bool is_alone_in_its_pod() const {
    if (found_.launcher == "flags" || !set("KUBERNETES_SERVICE_HOST")) {
      return false;
    }
    const std::string processes = getenv_("PET_NPROC_PER_NODE").value_or("1");
    if (processes.find_first_not_of("0123456789") == std::string::npos && processes != "1") {
      refuse("PET_NPROC_PER_NODE: got {}, expected 1, or torchrun in the pod to start them",
             quote(processes));
    }
    return true;
  }

  void set_nodes(const Sourced& node_rank, const Sourced& num_nodes) {
    require_below(node_rank, num_nodes);
    const auto& [rank, world_size, local_rank, local_world_size] = identity_;
    if (num_nodes.value > world_size.value ||
        (num_nodes.value == 1) != (local_world_size.value == world_size.value)) {
      refuse("{}: got {} node{}, expected as many as fit {} ({}) and {} ({}) on this node",
             num_nodes.source, num_nodes.value, num_nodes.value == 1 ? "" : "s", world_size.source,
             world_size.value, local_world_size.source, local_world_size.value);
    }
    record_nodes(node_rank, num_nodes);
  }

  /// Nobody counts the nodes: as many as there are groups of the local size, ranks in order.
  void set_even_nodes() {
    const Sourced& world_size = identity_.world_size;
    const Sourced& local = identity_.local_world_size;
    if (world_size.value % local.value != 0) {
      refuse("{}: got {}, expected a multiple of {} ({}), or GROUP_WORLD_SIZE nodes",
             world_size.source, world_size.value, local.source, local.value);
    }
    set_nodes(number("GROUP_RANK", 0).value_or(Sourced{found_.rank / local.value, kEvenRule}),
              {world_size.value / local.value, kEvenRule});
  }

  /// Nobody counts the nodes and the last may have fewer processes. Ranks fill nodes or go round.
  void derive_nodes() {
    const int local = found_.local_world_size;
    const int nodes = (found_.world_size + local - 1) / local;
    const bool fills = found_.rank % local == found_.local_rank;
    record_nodes({fills ? found_.rank / local : found_.rank % nodes, kEvenRule},
                 {nodes, kEvenRule});
  }

  void record_nodes(const Sourced& node_rank, const Sourced& num_nodes) {
    record("node_rank", node_rank, &found_.node_rank);
    record("num_nodes", num_nodes, &found_.num_nodes);
  }

  /// Launchers nest, so restarts add up: a requeued Slurm job is a restart whatever torchrun says.
  void add_restarts(const char* name) {
    if (const std::optional<Sourced> count = number(name, 0, 1 << 20)) {
      found_.restart_count += count->value;
      record("restart_count", *count);
    }
  }

  /// @throws UsageError if `name` is set to another number
  void agrees_with(const char* name, const Sourced& expected) const {
    const std::optional<Sourced> found = number(name, 0);
    if (found && found->value != expected.value) {
      refuse("{}: got {}, expected {} as {} says", name, found->value, expected.value,
             expected.source);
    }
  }

  /// torchrun's variables may be exported next to another launcher's, if they agree.
  void agrees_with_exported(const Identity& expected) const {
    agrees_with("WORLD_SIZE", expected.world_size);
    agrees_with("LOCAL_RANK", expected.local_rank);
    agrees_with("LOCAL_WORLD_SIZE", expected.local_world_size);
  }

  /// RANK next to an outer launcher of as many processes that calls this one by another number: an
  /// "export RANK=$SLURM_PROCID" in the batch script, say, which makes all of them rank 0.
  void refuse_rank_of_another(const char* rank_name, const char* world_size_name) const {
    const std::optional<Sourced> world_size = number(world_size_name, 1);
    if (world_size && world_size->value == found_.world_size) {
      agrees_with(rank_name, {found_.rank, "RANK"});
    }
  }

  // ---- The store.

  /// --master-addr, --master-port, MASTER_ADDR and MASTER_PORT.
  /// @return true if both parts are known
  bool find_master() {
    const bool is_flag = !options_.master_addr.empty();
    const std::string source = is_flag ? "--master-addr" : "MASTER_ADDR";
    const std::string given = is_flag ? options_.master_addr : text(source).value_or("");
    std::string host = given;
    if (host.starts_with('[') && host.ends_with(']')) {
      host = host.substr(1, host.size() - 2);  // "[fd00::1]", as in addresses with a port
    }
    if (!given.empty() && !is_host_or_address(host)) {
      refuse("{}: got {}, expected a host name or an address, without a port", source,
             quote(given));
    }
    if (host == "0.0.0.0" || host == "::") {
      refuse("{}: got {}, expected an address of one host; this one means all of a host's own",
             source, quote(given));
    }
    std::optional<Sourced> port = flag(options_.master_port, "--master-port");
    port = port ? port : number("MASTER_PORT", 1, kMaxPort);
    if (!host.empty()) {
      found_.store.host = host;
      record("store.host", host, source);
    }
    if (port) {
      record("store.port", *port, &found_.store.port);
    }
    found_.store.kind = StoreLocation::Kind::kTcp;
    return !host.empty() && port;
  }

  /// @param hint what was expected
  void require_master(const std::string& hint) {
    if (!find_master()) {
      refuse("{} is not set, expected {}",
             found_.store.host.empty() ? "MASTER_ADDR" : "MASTER_PORT", hint);
    }
  }

  /// @return false if the store's address is needed and nothing is said about it
  /// @throws UsageError with `hint` if half of it is said
  bool knows_store(const std::string& hint) {
    if (find_master() || found_.world_size == 1) {
      return true;
    }
    if (!found_.store.host.empty() || found_.store.port != 0) {
      require_master(hint);
    }
    return false;
  }

  /// What no other job and no other start of this one is called.
  static std::string as_file_name(const std::string& job) {
    std::string name = job;
    for (char& c : name) {
      const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
      c = plain ? c : '_';
    }
    return name;
  }

  void set_file(StoreLocation::Kind kind, const std::string& file) {
    found_.store.kind = kind;
    found_.store.file = file;
    record("store.file", file, "derived from the job's id");
  }

  /// All ranks are on this host.
  /// @param folders variables, of which the last that names a folder wins
  void set_meeting_file(const std::vector<const char*>& folders, const std::string& job) {
    std::string folder = "/tmp";
    for (const char* const name : folders) {
      const std::string value = name == nullptr ? "" : getenv_(name).value_or("");
      folder = value.starts_with('/') ? value : folder;
    }
    set_file(StoreLocation::Kind::kMeetingFile, meeting_file_path(folder, as_file_name(job)));
  }

  /// DDP_STORE_KEY, for a store that others can reach.
  void find_store_key() {
    constexpr size_t kDigits = 32;
    const std::optional<std::string> key = text("DDP_STORE_KEY");
    if (!key) {
      return;
    }
    if (key->size() != kDigits ||
        key->find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      refuse(
          "DDP_STORE_KEY: got {} characters, expected {} hexadecimal digits, as `openssl rand "
          "-hex 16` prints them",
          key->size(), kDigits);
    }
    found_.store.key = *key;
    record("store.key", "(not shown)", "DDP_STORE_KEY");
  }

  std::vector<std::string> hosts_of(const std::string& name) const {
    const std::optional<std::string> list = text(name);
    if (!list) {
      throw UsageError(name + " is not set, expected the nodes' names, or MASTER_ADDR");
    }
    try {
      return expand_node_list(*list);
    } catch (const UsageError& error) {
      throw UsageError(name + ": " + error.what());
    }
  }

  // ---- Variables.

  bool set(const std::string& name) const { return getenv_(name).has_value(); }

  std::optional<std::string> text(const std::string& name) const {
    std::optional<std::string> value = getenv_(name);
    if (value && value->empty()) {
      throw UsageError(name + " is set but empty, expected a value");
    }
    return value;
  }

  std::optional<Sourced> number(const std::string& name, int minimum,
                                int maximum = kMaxWorldSize) const {
    const std::optional<std::string> value = getenv_(name);
    return value ? std::optional(Sourced{parse_integer(name, *value, minimum, maximum), name})
                 : std::nullopt;
  }

  Sourced need(const std::string& name, int minimum) const {
    const std::optional<Sourced> value = number(name, minimum);
    if (!value) {
      refuse("{} is not set, expected an integer >= {} next to the launcher's other variables ({})",
             name, minimum, found_.launcher);
    }
    return *value;
  }

  static std::optional<Sourced> flag(const std::optional<int>& value, const char* name) {
    return value ? std::optional(Sourced{*value, name}) : std::nullopt;
  }

  void record(const std::string& what, const std::string& value, const std::string& source) {
    found_.evidence.push_back({what, value, source});
  }
  void record(const std::string& what, const Sourced& number, int* field = nullptr) {
    record(what, std::to_string(number.value), number.source);
    if (field != nullptr) {
      *field = number.value;
    }
  }

  const Options& options_;
  const GetEnv& getenv_;
  LaunchEnvironment found_;
  Identity identity_;
};

}  // namespace

std::optional<std::string> process_getenv(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

LaunchEnvironment read_launch_environment(const Options& options, const GetEnv& getenv) {
  return LaunchReader(options, getenv).read();
}

}  // namespace ddp
