// Each launcher's environment, and missing, malformed or contradictory variables.
#include "common/meet/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::contains;
using ddp::test::words;
using Kind = ddp::StoreLocation::Kind;
using ddp::Variables;

/// "A=1 B=2"
Variables variables(const std::string& line) {
  Variables found;
  for (const auto& [name, value] : ddp::test::variables(line)) {
    found[name] = value.value();
  }
  return found;
}

// Variables that each launcher really sets.
const Variables kTorchrun = variables(
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "
    "MASTER_ADDR=n1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=2 "
    "TORCHELASTIC_USE_AGENT_STORE=True");
const Variables kSpawn = variables(
    "DDP_LAUNCHER=spawn RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "
    "DDP_STORE_FILE=/tmp/x/store");
const Variables kByHand =
    variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=n1 MASTER_PORT=29500");
const Variables kOpenMpi = variables(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=2096300033 PMIX_RANK=1");
const Variables kSlurm = variables(
    "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=8 "
    "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2,1 "
    "SLURM_STEP_NODELIST=n[1-2]");
const Variables kSlurmOneNode = variables(
    "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=2 SLURM_NODEID=0 "
    "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3");
const Variables kPod =
    variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=1 KUBERNETES_SERVICE_HOST=x");
const Variables kCondor =
    variables("_CONDOR_PROCNO=1 _CONDOR_NPROCS=3 _CONDOR_JOB_IWD=/home/me/run DDP_JOB_ID=345");

Variables with(Variables all, const std::string& changes) {
  for (const auto& [name, value] : variables(changes)) {
    all[name] = value;
  }
  return all;
}

Variables without(Variables all, const std::string& names) {
  for (const std::string& name : words(names)) {
    all.erase(name);
  }
  return all;
}

ddp::LaunchEnvironment read(const Variables& all, const ddp::IdentityOptions& options = {}) {
  return ddp::read_launch_environment(options, all);
}

/// Launcher, rank, local rank, node, restarts, and the store, as text.
std::string identity(const Variables& all) {
  const ddp::LaunchEnvironment found = read(all);
  const char* const kinds[] = {"none", "file", "tcp", "agent_tcp", "shared_file"};
  return fmt::format("{} {}/{} {}/{} {}/{} +{} {} @{} {}", found.launcher, found.rank,
                     found.world_size, found.local_rank, found.local_world_size, found.node_rank,
                     found.num_nodes, found.restart_count,
                     kinds[static_cast<size_t>(found.store.kind)], found.store.host,
                     found.store.prefix);
}

/// Checks that variables are refused as usage error, in one line with `name`.
void check_refused(const Variables& all, const std::string& name,
                   const ddp::IdentityOptions& options = {}) {
  std::string message = "(accepted)";
  try {
    read(all, options);
  } catch (const ddp::UsageError& error) {
    message = error.what();
  }
  std::string shown;
  for (const auto& [variable, value] : all) {
    shown += variable + "=" + value.substr(0, 100) + " ";
  }
  INFO(shown);
  INFO(message);
  CHECK(contains(message, name));
  CHECK(contains(message, "expected"));
  CHECK(message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("each launcher's variables make an identity and a place to meet") {
  const Variables torchrun_alone =
      variables("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=a");
  // Ranks 0 and 2 on the first node, 1 on the second.
  const Variables mpi_round = with(
      kOpenMpi, "OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=2 MASTER_ADDR=n1 MASTER_PORT=29500");
  for (const auto& [all, expected] : std::vector<std::pair<Variables, std::string>>{
           {{}, "none 0/1 0/1 0/1 +0 none @ "},
           {kTorchrun, "torchrun 3/4 1/2 1/2 +2 agent_tcp @n1 torchrun/job7/2"},
           {without(kTorchrun, "GROUP_RANK GROUP_WORLD_SIZE TORCHELASTIC_USE_AGENT_STORE"),
            "torchrun 3/4 1/2 1/2 +2 tcp @n1 torchrun/job7/2"},
           {with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE=False"),
            "torchrun 3/4 1/2 1/2 +2 tcp @n1 torchrun/job7/2"},
           {with(kTorchrun, "WORLD_SIZE=5 SLURM_RESTART_COUNT=1"),
            "torchrun 3/5 1/2 1/2 +3 agent_tcp @n1 torchrun/job7/3"},
           {torchrun_alone, "torchrun 0/1 0/1 0/1 +0 none @ "},
           {kSpawn, "spawn 0/2 0/2 0/1 +0 file @ spawn/0"},
           {kByHand, "environment 1/2 0/1 1/2 +0 tcp @n1 environment/0"},
           {with(kByHand, "WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=fe80::1%eth0"),
            "environment 1/4 1/2 1/4 +0 tcp @fe80::1%eth0 environment/0"},
           {with(kByHand, "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"),
            "environment 1/2 1/2 0/1 +0 tcp @n1 environment/0"},
           {variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=[::1] MASTER_PORT=29500"),
            "environment 1/2 1/2 0/1 +0 tcp @::1 environment/0"},
           // A pod is one process, wherever its master says that it is.
           {kPod, "environment 1/2 0/1 1/2 +0 tcp @n1 environment/0"},
           {with(kPod, "RANK=0 MASTER_ADDR=localhost"),
            "environment 0/2 0/1 0/2 +0 tcp @localhost environment/0"},
           {with(kPod, "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost"),
            "environment 1/2 1/2 0/1 +0 tcp @localhost environment/0"},
           {kOpenMpi, "openmpi 1/2 1/2 0/1 +0 tcp @127.0.0.1 openmpi/2096300033/0"},
           {mpi_round, "openmpi 2/3 1/2 0/2 +0 tcp @n1 openmpi/2096300033/0"},
           {kSlurm, "slurm 2/3 0/1 1/2 +0 tcp @n1 slurm/12.0/0"},
           {with(kSlurm, "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)"),
            "slurm 2/4 0/2 1/2 +0 tcp @n1 slurm/12.0/0"},
           {with(kSlurm, "MASTER_ADDR=n1-ib MASTER_PORT=29500 SLURM_STEP_NODELIST=unknown"),
            "slurm 2/3 0/1 1/2 +0 tcp @n1-ib slurm/12.0/0"},
           {kSlurmOneNode, "slurm 2/3 2/3 0/1 +0 tcp @127.0.0.1 slurm/12.0/0"},
           {with(kSlurmOneNode, "MASTER_ADDR=localhost"),
            "slurm 2/3 2/3 0/1 +0 tcp @localhost slurm/12.0/0"},
           {with(kCondor, "MASTER_ADDR=n1 MASTER_PORT=29500"),
            "htcondor 1/3 0/1 1/3 +0 tcp @n1 htcondor/345/0"}}) {
    CHECK(identity(all) == expected);
  }
  CHECK(read(kSpawn).store.file == "/tmp/x/store");
  const ddp::StoreLocation condor = read(kCondor).store;
  CHECK(condor.kind == Kind::kSharedFile);
  CHECK(condor.file == "/home/me/run/ddp-store-" + std::to_string(geteuid()) + "-345");
  CHECK(!condor.host.empty());
}

TEST_CASE("the first host of a node list, which a rank in a container reads without scontrol") {
  std::string many = "n[1";
  for (int node = 3; many.size() < 120'000; node += 2) {
    many += "," + std::to_string(node);
  }
  for (const auto& [list, first] :
       std::vector<std::pair<std::string, std::string>>{{"n1", "n1"},
                                                        {many + "]", "n1"},
                                                        {"node1,node2", "node1"},
                                                        {"node[01-03,7],gpu-[1-2]x", "node01"},
                                                        {"gpu-[1-2]x,node7", "gpu-1x"},
                                                        {"r[2,1]-n[007-008]", "r2-n007"},
                                                        {"[12-14]", "12"},
                                                        {"a.b-c[9].org,n[3-4]", "a.b-c9.org"}}) {
    CHECK(read(with(kSlurm, "SLURM_STEP_NODELIST=" + list)).store.host == first);
  }
  for (const char* const bad : {"n[1-", "n[", "n[]", "n[a-b]", "n[-1]", "bg[00x11]", ",n1"}) {
    check_refused(with(kSlurm, std::string("SLURM_STEP_NODELIST=") + bad), "MASTER_ADDR");
  }
}

TEST_CASE("launchers nest, and the innermost decides") {
  Variables all = kCondor;
  for (const auto& [variables_of_inner, name] :
       std::vector<std::pair<Variables, const char*>>{{kSlurmOneNode, "slurm"},
                                                      {kOpenMpi, "openmpi"},
                                                      {kByHand, "environment"},
                                                      {kTorchrun, "torchrun"},
                                                      {kSpawn, "spawn"}}) {
    all.insert(variables_of_inner.begin(), variables_of_inner.end());
    CHECK(read(all).launcher == name);
  }
  ddp::IdentityOptions flags;
  flags.rank = 1;
  flags.world_size = 2;
  flags.master_addr = "localhost";
  flags.master_port = 29500;
  const ddp::LaunchEnvironment found = read(all, flags);
  CHECK(found.launcher == "flags");
  CHECK(found.local_rank == 1);
  CHECK(found.store.host == "localhost");
  CHECK(found.store.port == 29500);
  flags.local_rank = 0;
  flags.local_world_size = 1;
  CHECK(read(all, flags).num_nodes == 2);
  // torchrun's agent serves only at its own address and port.
  flags = {};
  flags.master_addr = "n2";
  CHECK(read(kTorchrun, flags).store.kind == Kind::kTcp);
  CHECK(read(kTorchrun, flags).store.host == "n2");
  flags = {};
  flags.master_port = 1;
  CHECK(read(kTorchrun, flags).store.kind == Kind::kTcp);
}

TEST_CASE("every rank derives the same port, another step or restart most likely another") {
  const int port = read(kSlurmOneNode).store.port;
  CHECK(port >= 20000);
  CHECK(port < 32000);
  CHECK(read(with(kSlurmOneNode, "SLURM_PROCID=0 SLURM_LOCALID=0")).store.port == port);
  CHECK(read(with(kSlurmOneNode, "SLURM_STEP_ID=1")).store.port != port);
  CHECK(read(with(kSlurmOneNode, "SLURM_RESTART_COUNT=1")).store.port != port);
  CHECK(read(with(kSlurmOneNode, "MASTER_PORT=29500")).store.port == 29500);
  // Two mpirun in two process namespaces have one name, and listen elsewhere.
  const Variables mpi = with(
      kOpenMpi, "OMPI_MCA_orte_hnp_uri=7.0;tcp://n1:1 PMIX_SERVER_URI2=7.0;tcp4://127.0.0.1:2");
  std::vector<ddp::StoreLocation> stores;
  for (const char* const changes :
       {"PMIX_NAMESPACE=7", "OMPI_MCA_orte_hnp_uri=7.0;tcp://n1:3",
        "PMIX_SERVER_URI2=7.0;tcp4://127.0.0.1:4", "PMIX_SERVER_URI41=7.0;tcp6://[::1]:5",
        "OMPI_UNIVERSE_SIZE=2"}) {
    stores.push_back(read(with(mpi, changes)).store);
    for (size_t i = 0; i + 1 < stores.size(); ++i) {
      CHECK(stores[i].port != stores.back().port);
      CHECK(stores[i].prefix != stores.back().prefix);
    }
  }
  CHECK(read(with(mpi, "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0")).store ==
        stores.back());
  // The daemon of another node has its own address.
  const Variables two_nodes = with(mpi, "OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=9");
  CHECK(read(two_nodes).store == read(with(two_nodes, "PMIX_SERVER_URI2=8")).store);
  CHECK(read(two_nodes).store.prefix !=
        read(with(two_nodes, "OMPI_MCA_orte_hnp_uri=8")).store.prefix);
}

TEST_CASE("numbers that are none, and variables that are missing, are refused by name") {
  for (const auto& [good, names] : std::vector<std::pair<Variables, std::string>>{
           {kTorchrun, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK"},
           {kSpawn, "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE"},
           {kByHand, "WORLD_SIZE LOCAL_RANK MASTER_PORT"},
           {kOpenMpi, "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE"},
           {kSlurm, "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_NUM_TASKS"},
           {kCondor, "_CONDOR_NPROCS"}}) {
    for (const std::string& name : words(names)) {
      for (const char* const value :
           {"", "abc", " 1", "1 ", "1e3", "-1", "+1", "0x1", "1.0", "2147483648", "1\n2"}) {
        Variables bad = good;
        bad[name] = value;
        check_refused(bad, name);
      }
      check_refused(without(good, name), name);
    }
  }
}

TEST_CASE("contradictions are refused by name") {
  for (const auto& [bad, name] : std::vector<std::pair<Variables, std::string>>{
           {with(kTorchrun, "RANK=4"), "RANK: got 4, expected less than WORLD_SIZE (4)"},
           {with(kTorchrun, "LOCAL_RANK=2"), "LOCAL_RANK: got 2"},
           {with(kTorchrun, "LOCAL_WORLD_SIZE=5"), "LOCAL_WORLD_SIZE: got 5"},
           {with(kTorchrun, "GROUP_RANK=2"), "GROUP_RANK: got 2"},
           {without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR"},
           {without(kTorchrun, "MASTER_PORT"), "MASTER_PORT"},
           {without(kByHand, "LOCAL_RANK"), "LOCAL_RANK"},
           {with(kPod, "MASTER_ADDR=127.0.0.1"), "LOCAL_RANK is not set"},  // two in a pod
           {with(kSpawn, "DDP_STORE_FILE="), "DDP_STORE_FILE is empty"},
           {with(kOpenMpi, "OMPI_COMM_WORLD_SIZE=4"), "-x MASTER_ADDR"},
           {without(kOpenMpi, "PMIX_NAMESPACE"), "MASTER_ADDR"},
           {without(kSlurm, "SLURM_JOB_ID"), "SLURM_JOB_ID"},
           {with(kSlurm, "SLURM_NODEID=2"), "SLURM_NODEID: got 2"},
           {with(kSlurm, "MASTER_ADDR=localhost"), "MASTER_ADDR: got localhost with 2 nodes"},
           {with(kOpenMpi, "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 MASTER_ADDR=127.0.0.1"),
            "MASTER_ADDR: got 127.0.0.1 with 2 nodes"},
           {with(kSlurm, "SLURM_LOCALID=1"), "SLURM_LOCALID: got 1"},
           {with(kSlurm, "SLURM_STEP_TASKS_PER_NODE=2"), "SLURM_STEP_TASKS_PER_NODE"},
           {with(kSlurm, "SLURM_STEP_TASKS_PER_NODE=2(x,1"), "SLURM_STEP_TASKS_PER_NODE"},
           {with(kCondor, "_CONDOR_PROCNO=3"), "_CONDOR_PROCNO: got 3"},
           {without(kCondor, "DDP_JOB_ID"), "DDP_JOB_ID"},
           {with(kCondor, "DDP_JOB_ID=../7"), "DDP_JOB_ID"},
           {with(kCondor, "MASTER_ADDR=n1"), "MASTER_PORT"},
           {with(kCondor, "MASTER_PORT=1"), "MASTER_ADDR"},
           {variables("RANK=0"), "WORLD_SIZE"}}) {
    check_refused(bad, name);
  }
  for (const char* const host : {"", "n1:29500", "http://n1", "n1,n2", "user@n1", "fe80::1",
                                 "FE80::1", "n1\r", "*", "0.0.0.0", "::", "[]", "n1/24"}) {
    check_refused(with(kByHand, std::string("MASTER_ADDR=") + host), "MASTER_ADDR");
  }
  for (const char* const port : {"0", "65536", "29500x"}) {
    check_refused(with(kByHand, std::string("MASTER_PORT=") + port), "MASTER_PORT");
  }
  ddp::IdentityOptions flags;
  flags.world_size = 2;
  check_refused({}, "--world-size", flags);
  flags.rank = 2;
  check_refused({}, "--rank: got 2", flags);
  flags.rank = 1;
  check_refused({}, "--local-rank", flags);
}

TEST_CASE("variables of other launchers are refused with the five to set") {
  std::vector<std::string> launchers = words(
      "PMI_SIZE=4 PMI_SIZE=two PMIX_RANK=0 PALS_RANKID=1 FLUX_JOB_SIZE=2 JSM_NAMESPACE_SIZE=2 "
      "MPI_LOCALNRANKS=2 MV2_COMM_WORLD_SIZE=2 JOB_COMPLETION_INDEX=0 PET_NNODES=2 "
      "AWS_BATCH_JOB_NUM_NODES=2 DMLC_NUM_WORKER=2 WORLD_SIZE=1 LOCAL_RANK=0 ALPS_APP_PE=0 "
      "OMPI_COMM_WORLD_SIZE=2 _CONDOR_NPROCS=2 PBS_TASKNUM=2 PBS_VNODENUM=1 LSF_PM_TASKID=2 "
      "NODE_RANK=1 LWS_GROUP_SIZE=2 VC_TASK_INDEX=1 AZUREML_NODE_COUNT=2 SM_HOSTS=[\"a\",\"b\"] "
      "TF_CONFIG={ "
      "TF_CONFIG={\"cluster\":{\"worker\":[\"a\",\"b\"]}} "
      "CLUSTER_SPEC={\"cluster\":{\"workerpool0\":[\"a\"],\"workerpool1\":[\"b\"]}} "
      "CLUSTER_SPEC={\"ps\":[\"a\"],\"worker\":[\"b\"]}");
  for (const char* const pair :
       {"HOROVOD_RANK=0 HOROVOD_SIZE=2", "X_COMM_RANK=1 X_COMM_WORLD_SIZE=4",
        "NEW_RANK=0 NEW_NRANKS=2", "NODE_RANK=0 NNODES=2 MASTER_ADDR=x",
        "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2", "DSTACK_NODE_RANK=0 DSTACK_NODES_NUM=2",
        "BEAKER_REPLICA_RANK=0 BEAKER_REPLICA_COUNT=2"}) {
    launchers.emplace_back(pair);
  }
  for (const std::string& launcher : launchers) {
    check_refused(variables(launcher), "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
  }
  CHECK(read(with(kByHand, "PMI_SIZE=2 PMIX_RANK=1")).launcher == "environment");
  // One process, or only a job.
  const ddp::LaunchEnvironment alone = read(variables(
      "PMI_SIZE=1 FLUX_JOB_SIZE=1 PET_NNODES=1 HOROVOD_RANK=0 HOROVOD_SIZE=1 PAGE_RANK=2 "
      "PBS_TASKNUM=1 PBS_VNODENUM=0 NODE_RANK=0 NNODES=1 NUM_NODES=1 VC_TASK_INDEX=0 "
      "SM_HOSTS=[\"a\"] TF_CONFIG={} CLUSTER_SPEC={\"cluster\":{\"workerpool0\":[\"a\"]}} "
      "PBS_NODEFILE=/x PBS_NUM_NODES=1 NSLOTS=8 PE_HOSTFILE=/x LSB_JOBID=1 OAR_NODEFILE=/x "
      "RAY_JOB_ID=1 SLURM_ARRAY_TASK_COUNT=4"));
  CHECK(alone.world_size == 1);
  CHECK(alone.note.empty());
}

TEST_CASE("a process that trains alone notes what may be meant for several") {
  for (const auto& [all, note] : std::vector<std::pair<Variables, std::string>>{
           {variables("MASTER_ADDR=n1"), "MASTER_ADDR is \"n1\""},
           {variables("MASTER_PORT=29500 MASTER_ADDR=n\x1b"), "MASTER_ADDR is \"n\\x1b\""},
           {variables("MASTER_PORT=29500"), "MASTER_PORT is 29500"},
           {variables("PBS_NUM_NODES=2"), "PBS_NUM_NODES is 2"},
           {variables("NHOSTS=2 MASTER_ADDR=n1"), "NHOSTS is 2"},
           // The batch script of a Slurm job is not a step.
           {variables("SLURM_JOB_ID=5 SLURM_NTASKS=8 SLURM_PROCID=0"), "SLURM_NTASKS is 8"},
           {variables("SLURM_JOB_ID=5 SLURM_NNODES=2"), "SLURM_NNODES is 2"},
           // Nor is the shell of salloc, with use_interactive_step.
           {with(kSlurm, "SLURM_STEP_ID=4294967280 SLURM_STEP_NUM_TASKS=1"), "SLURM_NTASKS is 8"},
       }) {
    const ddp::LaunchEnvironment alone = read(all);
    CHECK(alone.launcher == "none");
    CHECK(alone.world_size == 1);
    CHECK(contains(alone.note, note + ", but this process has no rank and trains alone"));
  }
  const auto single = read(variables("SLURM_JOB_ID=5 SLURM_NTASKS=1 SLURM_RESTART_COUNT=1"));
  CHECK(single.note.empty());
  CHECK(single.restart_count == 1);
}

TEST_CASE("the first node of a Slurm step serves the store, whatever its ranks are") {
  CHECK(read(with(kSlurm, "SLURM_PROCID=0")).store.server == -1);
  CHECK(read(with(kSlurm, "SLURM_NODEID=0 SLURM_PROCID=1")).store.server == 1);
  CHECK(read(with(kSlurm, "SLURM_NODEID=0 SLURM_LOCALID=1")).store.server == -1);
  CHECK(contains(ddp::describe(read(with(kSlurm, "SLURM_PROCID=0")), false), "another rank"));
  CHECK(read(with(kSlurm, "MASTER_ADDR=n9 SLURM_PROCID=0")).store.server == 0);
}

TEST_CASE("every fact is shown with its source, on one line of JSON or in a table") {
  for (const Variables& all : {kTorchrun, kSpawn, kByHand, kOpenMpi, kSlurmOneNode, kCondor}) {
    const ddp::LaunchEnvironment environment = read(all);
    const std::string line = ddp::describe(environment, true);
    CHECK(line.find('\n') == line.size() - 1);
    const nlohmann::json document = nlohmann::json::parse(line);
    CHECK(document.at("local_world_size") == environment.local_world_size);
    CHECK(document.at("evidence").size() == environment.evidence.size());
    const std::string text = ddp::describe(environment, false);
    for (const ddp::Evidence& fact : environment.evidence) {
      CHECK(contains(text, fact.source));
    }
  }
  Variables odd = kTorchrun;
  odd["TORCHELASTIC_RUN_ID"] = "\xff\xfe\n";
  CHECK_NOTHROW(nlohmann::json::parse(ddp::describe(read(odd), true)));
  CHECK(contains(ddp::describe(read(odd), false), "\\n"));
}
