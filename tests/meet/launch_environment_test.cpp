// A row for each launcher: its environment, and missing, malformed or contradictory variables.
#include "common/meet/launch.hpp"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/meet/launchers.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using Kind = ddp::StoreLocation::Kind;
using ddp::Variables;

/// @param changes "A=1 B": A is set, B is not
Variables with(Variables all, const std::string& changes) {
  for (const auto& [name, value] : variables(changes)) {
    all.erase(name);
    if (value) {
      all[name] = *value;
    }
  }
  return all;
}

/// For srun: all tasks on the first node.
constexpr const char* kOneNode =
    "SLURM_LOCALID=2 SLURM_NODEID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=3";

/// Changes of a launcher's variables, and what is read then, or a part of the refusal.
using Cases = std::vector<std::pair<const char*, const char*>>;

/// Variables that a launcher really sets.
struct Fixture {
  const char* launcher;
  const char* variables;
  const char* numbers;  ///< refused by name without one of them, and with another text in it
  const char* refused;  ///< words that are each a change that is refused by the variable's name
  Cases identities;
  Cases refusals = {};
};

const Fixture kFixtures[] = {
    {"flags",
     "--rank=1 --world-size=2 --local-rank=0 --local-world-size=1 --master-addr=n1 "
     "--master-port=29500",
     "--world-size --local-rank",
     "--rank=2 --master-addr=n1:1 --master-port=0",
     {{"", "1/2 0/1 1/2 +0 tcp @n1 /0"},
      {"--local-rank --local-world-size --master-addr=::1", "1/2 1/2 0/1 +0 tcp @::1 /0"}}},
    {"spawn",
     "DDP_LAUNCHER=spawn RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "
     "DDP_STORE_FILE=/tmp/x/store",
     "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE",
     "DDP_STORE_FILE= DDP_STORE_FILE",
     {{"", "0/2 0/2 0/1 +0 file @/tmp/x/store /0"}}},
    {"torchrun",
     "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "
     "MASTER_ADDR=n1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=2 "
     "TORCHELASTIC_USE_AGENT_STORE=True",
     "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK",
     "LOCAL_RANK=2 LOCAL_WORLD_SIZE=5 GROUP_RANK=2 MASTER_ADDR MASTER_PORT",
     {{"", "3/4 1/2 1/2 +2 agent_tcp @n1 /job7/2"},
      {"GROUP_WORLD_SIZE TORCHELASTIC_USE_AGENT_STORE", "3/4 1/2 1/2 +2 tcp @n1 /job7/2"},
      {"TORCHELASTIC_USE_AGENT_STORE=False", "3/4 1/2 1/2 +2 tcp @n1 /job7/2"},
      {"WORLD_SIZE=5 SLURM_RESTART_COUNT=1", "3/5 1/2 1/2 +3 agent_tcp @n1 /job7/3"},
      // torchrun's agent serves only at its own address and port.
      {"--master-addr=n2", "3/4 1/2 1/2 +2 tcp @n2 /job7/2"},
      {"--master-port=1", "3/4 1/2 1/2 +2 tcp @n1 /job7/2"},
      {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE MASTER_ADDR",
       "0/1 0/1 0/1 +2 none @ "}},
     {{"RANK=4", "RANK: got 4, expected less than WORLD_SIZE (4)"}}},
    {"environment",
     "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=n1 MASTER_PORT=29500",
     "WORLD_SIZE LOCAL_RANK MASTER_PORT",
     "MASTER_PORT=0 MASTER_PORT=65536 MASTER_ADDR= MASTER_ADDR=n1:29500 MASTER_ADDR=http://n1 "
     "MASTER_ADDR=n1,n2 MASTER_ADDR=user@n1 MASTER_ADDR=fe80::1 MASTER_ADDR=FE80::1 "
     "MASTER_ADDR=n1\r MASTER_ADDR=* MASTER_ADDR=0.0.0.0 MASTER_ADDR=:: MASTER_ADDR=[] "
     "MASTER_ADDR=n1/24 MASTER_ADDR",
     {{"", "1/2 0/1 1/2 +0 tcp @n1 /0"},
      {"WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=fe80::1%e", "1/4 1/2 1/4 +0 tcp @fe80::1%e /0"},
      {"LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "1/2 1/2 0/1 +0 tcp @n1 /0"},
      {"LOCAL_RANK MASTER_ADDR=[::1]", "1/2 1/2 0/1 +0 tcp @::1 /0"},
      // A pod is one process, wherever its master says that it is.
      {"KUBERNETES_SERVICE_HOST=x LOCAL_RANK", "1/2 0/1 1/2 +0 tcp @n1 /0"},
      {"KUBERNETES_SERVICE_HOST=x LOCAL_RANK RANK=0 MASTER_ADDR=::1", "0/2 0/1 0/2 +0 tcp @::1 /0"},
      {"KUBERNETES_SERVICE_HOST=x LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost",
       "1/2 1/2 0/1 +0 tcp @localhost /0"},
      {"PMI_SIZE=2 PMIX_RANK=1", "1/2 0/1 1/2 +0 tcp @n1 /0"}},
     {{"KUBERNETES_SERVICE_HOST=x LOCAL_RANK MASTER_ADDR=127.0.0.1", "LOCAL_RANK is not set"}}},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=2096300033 PMIX_RANK=1",
     "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE",
     "",
     {{"", "1/2 1/2 0/1 +0 tcp @127.0.0.1 /2096300033/0"},
      // Ranks 0 and 2 on the first node, 1 on the second.
      {"OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=2 MASTER_ADDR=n1 MASTER_PORT=29500",
       "2/3 1/2 0/2 +0 tcp @n1 /2096300033/0"}},
     {{"OMPI_COMM_WORLD_SIZE=4", "-x MASTER_ADDR"},
      {"PMIX_NAMESPACE", "MASTER_ADDR"},
      {"OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1", "MASTER_ADDR: got 127.0.0.1 with 2 nodes"}}},
    {"srun",
     "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NTASKS=8 "
     "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2,1 "
     "SLURM_STEP_NODELIST=n[1-2]",
     "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_NUM_TASKS",
     "SLURM_JOB_ID SLURM_NODEID=2 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=2 "
     "SLURM_STEP_TASKS_PER_NODE=2(x,1 SLURM_STEP_NODELIST=n[1- SLURM_STEP_NODELIST=n[ "
     "SLURM_STEP_NODELIST=n[] SLURM_STEP_NODELIST=n[a-b] SLURM_STEP_NODELIST=n[-1] "
     "SLURM_STEP_NODELIST=bg[00x11] SLURM_STEP_NODELIST=,n1",
     {{"", "2/3 0/1 1/2 +0 tcp @n1 /12.0/0"},
      {"SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)", "2/4 0/2 1/2 +0 tcp @n1 /12.0/0"},
      {"MASTER_ADDR=n1-ib MASTER_PORT=29500 SLURM_STEP_NODELIST=unknown",
       "2/3 0/1 1/2 +0 tcp @n1-ib /12.0/0"},
      {kOneNode, "2/3 2/3 0/1 +0 tcp @127.0.0.1 /12.0/0"}},
     {{"MASTER_ADDR=localhost", "MASTER_ADDR: got localhost with 2 nodes"}}},
    {"htcondor",
     "_CONDOR_PROCNO=1 _CONDOR_NPROCS=3 _CONDOR_JOB_IWD=/home/me/run DDP_JOB_ID=345",
     "_CONDOR_NPROCS",
     "_CONDOR_PROCNO=3 _CONDOR_JOB_IWD DDP_JOB_ID DDP_JOB_ID=../7",
     {{"MASTER_ADDR=n1 MASTER_PORT=29500", "1/3 0/1 1/3 +0 tcp @n1 /345/0"}},
     {{"MASTER_ADDR=n1", "MASTER_PORT"}, {"MASTER_PORT=1", "MASTER_ADDR"}}},
};

/// Variables of a launcher.
Variables of(const std::string& launcher) {
  const auto* const fixture = std::ranges::find(kFixtures, launcher, &Fixture::launcher);
  INFO(launcher);
  REQUIRE(fixture != std::end(kFixtures));
  return with({}, fixture->variables);
}

ddp::LaunchEnvironment read(const Variables& all, const ddp::IdentityOptions& options = {}) {
  return ddp::read_launch_environment(options, all);
}

/// Rank, local rank, node, restarts, and the store, as text; its prefix without the launcher.
std::string identity(const ddp::LaunchEnvironment& found) {
  const char* const kinds[] = {"none", "file", "tcp", "agent_tcp", "shared_file"};
  const ddp::StoreLocation& store = found.store;
  CHECK(store.prefix.starts_with(store.prefix.empty() ? "" : found.launcher));
  return fmt::format("{}/{} {}/{} {}/{} +{} {} @{}{} {}", found.rank, found.world_size,
                     found.local_rank, found.local_world_size, found.node_rank, found.num_nodes,
                     found.restart_count, kinds[static_cast<size_t>(store.kind)], store.host,
                     store.file,
                     store.prefix.substr(store.prefix.empty() ? 0 : found.launcher.size()));
}

/// Checks that variables are refused as usage error, in one line with `name`.
void check_refused(const Variables& all, const std::string& name) {
  const std::string message = message_of<ddp::UsageError>([&all] { read(all); });
  INFO(fmt::format("{}: {}", all, message));
  CHECK(contains(message, name));
  CHECK(contains(message, "expected"));
  CHECK(message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("each launcher's variables make an identity and a place to meet") {
  CHECK(identity(read({})) == "0/1 0/1 0/1 +0 none @ ");
  for (const Fixture& fixture : kFixtures) {
    for (const auto& [changes, expected] : fixture.identities) {
      const ddp::LaunchEnvironment found = read(with(of(fixture.launcher), changes));
      CHECK(found.launcher == fixture.launcher);
      CHECK(identity(found) == expected);
    }
  }
  const ddp::StoreLocation condor = read(of("htcondor")).store;
  CHECK(condor.kind == Kind::kSharedFile);
  CHECK(condor.file == "/home/me/run/ddp-store-" + std::to_string(geteuid()) + "-345");
  CHECK(!condor.host.empty());
}

TEST_CASE("launchers nest, and the innermost decides; the page of clusters has them all") {
  const std::string page = ddp::read_text(DDP_SOURCE_DIR "/docs/guides/cluster.md");
  Variables all;
  const std::span<const ddp::Launcher> rows = ddp::launchers();
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    all.merge(std::exchange(all, of(row->name)));
    CHECK(ddp::launcher_of(read(all)).name == row->name);
    CHECK(contains(page, fmt::format("| `{}` |", row->shows)));
  }
  const ddp::IdentityOptions flags{1, 0, 2, 1, "localhost", 29500};
  const ddp::LaunchEnvironment found = read(all, flags);
  CHECK(identity(found) == "1/2 0/1 1/2 +2 tcp @localhost /2");
  CHECK(found.store.port == 29500);
}

TEST_CASE("a program that starts a job hides the variables by which it is a rank itself") {
  std::string hidden =
      "GROUP_WORLD_SIZE= ROLE_RANK= TORCHELASTIC_ERROR_FILE= MASTER_ADDR= PMI_FD= NODE_RANK= "
      "OMPI_UNIVERSE_SIZE= SLURM_STEPID= SLURM_GPU_BIND= LWS_LEADER_ADDRESS= DDP_STORE_FILE= ";
  for (const Fixture& fixture : kFixtures) {
    hidden += fixture.variables + std::string(" ");
  }
  for (const auto& [name, value] :
       with(with({}, hidden), "SLURM_JOB_ID SLURM_NTASKS _CONDOR_JOB_IWD DDP_JOB_ID")) {
    CHECK(ddp::is_identity_variable(name + "=" + value));
  }
  for (const std::string& variable :
       words("PATH=/bin RANKS=2 OMPI_MCA_x=1 SLURM_JOB_ID=1 SLURM_NTASKS=2 SLURM_RESTART_COUNT=1 "
             "_CONDOR_MACHINE_AD=x NNODES=2 DDP_JOB_ID=2 CUDA_VISIBLE_DEVICES=0")) {
    CHECK_FALSE(ddp::is_identity_variable(variable));
  }
}

TEST_CASE("the first host of a node list, which a rank in a container reads without scontrol") {
  std::string many = "n[1";
  for (int node = 3; many.size() < 120'000; node += 2) {
    many += "," + std::to_string(node);
  }
  for (const auto& [list, first] :
       with({}, many + "]=n1 n1=n1 node1,node2=node1 node[01-03,7],gpu-[1-2]x=node01 "
                       "gpu-[1-2]x,node7=gpu-1x r[2,1]-n[007-008]=r2-n007 [12-14]=12 "
                       "a.b-c[9].org,n[3-4]=a.b-c9.org")) {
    CHECK(read(with(of("srun"), "SLURM_STEP_NODELIST=" + list)).store.host == first);
  }
}

TEST_CASE("every rank derives the same port, another step or restart most likely another") {
  const auto port = [](const std::string& changes) {
    return read(with(with(of("srun"), kOneNode), changes)).store.port;
  };
  CHECK(port("") >= 20000);
  CHECK(port("") < 32000);
  CHECK(port("SLURM_PROCID=0 SLURM_LOCALID=0") == port(""));
  CHECK(port("SLURM_STEP_ID=1") != port(""));
  CHECK(port("SLURM_RESTART_COUNT=1") != port(""));
  CHECK(port("MASTER_PORT=29500") == 29500);
  // Two mpirun in two process namespaces have one name, and listen elsewhere.
  const Variables mpi = with(
      of("mpirun"), "OMPI_MCA_orte_hnp_uri=7.0;tcp://n1:1 PMIX_SERVER_URI2=7.0;tcp4://127.0.0.1:2");
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

TEST_CASE("missing, malformed and contradictory variables are refused by name") {
  for (const Fixture& fixture : kFixtures) {
    for (const std::string& name : words(fixture.numbers)) {
      for (const char* const value :
           {"", "abc", " 1", "1 ", "1e3", "-1", "+1", "0x1", "1.0", "2147483648", "1\n2"}) {
        Variables bad = of(fixture.launcher);
        bad[name] = value;
        check_refused(bad, name);
      }
      check_refused(with(of(fixture.launcher), name), name);
    }
    for (const std::string& change : words(fixture.refused)) {
      check_refused(with(of(fixture.launcher), change), change.substr(0, change.find('=')));
    }
    for (const auto& [changes, message] : fixture.refusals) {
      check_refused(with(of(fixture.launcher), changes), message);
    }
  }
}

TEST_CASE("variables of other launchers are refused with the five to set") {
  const std::string launchers =
      "PMI_SIZE=4;PMI_SIZE=two;PMIX_RANK=0;PALS_RANKID=1;FLUX_JOB_SIZE=2;JSM_NAMESPACE_SIZE=2;"
      "MPI_LOCALNRANKS=2;MV2_COMM_WORLD_SIZE=2;JOB_COMPLETION_INDEX=0;PET_NNODES=2;"
      "AWS_BATCH_JOB_NUM_NODES=2;DMLC_NUM_WORKER=2;WORLD_SIZE=1;LOCAL_RANK=0;ALPS_APP_PE=0;"
      "OMPI_COMM_WORLD_SIZE=2;_CONDOR_NPROCS=2;PBS_TASKNUM=2;PBS_VNODENUM=1;LSF_PM_TASKID=2;"
      "NODE_RANK=1;LWS_GROUP_SIZE=2;VC_TASK_INDEX=1;AZUREML_NODE_COUNT=2;SM_HOSTS=[\"a\",\"b\"];"
      "TF_CONFIG={;TF_CONFIG={\"cluster\":{\"worker\":[\"a\",\"b\"]}};"
      "CLUSTER_SPEC={\"cluster\":{\"workerpool0\":[\"a\"],\"workerpool1\":[\"b\"]}};"
      "CLUSTER_SPEC={\"ps\":[\"a\"],\"worker\":[\"b\"]};"
      "HOROVOD_RANK=0 HOROVOD_SIZE=2;X_COMM_RANK=1 X_COMM_WORLD_SIZE=4;NEW_RANK=0 NEW_NRANKS=2;"
      "NODE_RANK=0 NNODES=2 MASTER_ADDR=x;SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=2;"
      "DSTACK_NODE_RANK=0 DSTACK_NODES_NUM=2;BEAKER_REPLICA_RANK=0 BEAKER_REPLICA_COUNT=2";
  for (const std::string& launcher : ddp::split(launchers, ';')) {
    check_refused(with({}, launcher), "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
  }
  // One process, or only a job.
  const ddp::LaunchEnvironment alone = read(
      with({},
           "PMI_SIZE=1 FLUX_JOB_SIZE=1 PET_NNODES=1 HOROVOD_RANK=0 HOROVOD_SIZE=1 PAGE_RANK=2 "
           "PBS_TASKNUM=1 PBS_VNODENUM=0 NODE_RANK=0 NNODES=1 NUM_NODES=1 VC_TASK_INDEX=0 "
           "SM_HOSTS=[\"a\"] TF_CONFIG={} CLUSTER_SPEC={\"cluster\":{\"workerpool0\":[\"a\"]}} "
           "PBS_NODEFILE=/x PBS_NUM_NODES=1 NSLOTS=8 PE_HOSTFILE=/x LSB_JOBID=1 OAR_NODEFILE=/x "
           "RAY_JOB_ID=1 SLURM_ARRAY_TASK_COUNT=4"));
  CHECK(alone.world_size == 1);
  CHECK(alone.note.empty());
}

TEST_CASE("a process that trains alone notes what may be meant for several") {
  for (const auto& [set, note] : Cases{
           {"MASTER_ADDR=n1", "MASTER_ADDR is \"n1\""},
           {"MASTER_PORT=29500 MASTER_ADDR=n\x1b", "MASTER_ADDR is \"n\\x1b\""},
           {"MASTER_PORT=29500", "MASTER_PORT is 29500"},
           {"PBS_NUM_NODES=2", "PBS_NUM_NODES is 2"},
           {"NHOSTS=2 MASTER_ADDR=n1", "NHOSTS is 2"},
           // The batch script of a Slurm job is not a step.
           {"SLURM_JOB_ID=5 SLURM_NTASKS=8 SLURM_PROCID=0", "SLURM_NTASKS is 8"},
           {"SLURM_JOB_ID=5 SLURM_NNODES=2", "SLURM_NNODES is 2"},
           // Nor is the shell of salloc, with use_interactive_step.
           {"SLURM_STEP_ID=4294967280 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=8", "SLURM_NTASKS is 8"},
       }) {
    const ddp::LaunchEnvironment alone = read(with({}, set));
    CHECK(alone.launcher == "none");
    CHECK(alone.world_size == 1);
    CHECK(contains(alone.note, fmt::format("{}, but this process has no rank and trains", note)));
  }
  const auto single = read(with({}, "SLURM_JOB_ID=5 SLURM_NTASKS=1 SLURM_RESTART_COUNT=1"));
  CHECK(single.note.empty());
  CHECK(single.restart_count == 1);
}

TEST_CASE("the first node of a Slurm step serves the store, whatever its ranks are") {
  CHECK(read(with(of("srun"), "SLURM_PROCID=0")).store.server == -1);
  CHECK(read(with(of("srun"), "SLURM_NODEID=0 SLURM_PROCID=1")).store.server == 1);
  CHECK(read(with(of("srun"), "SLURM_NODEID=0 SLURM_LOCALID=1")).store.server == -1);
  CHECK(read(with(of("srun"), "MASTER_ADDR=n9 SLURM_PROCID=0")).store.server == 0);
}

TEST_CASE("ddp-env shows every fact with its source, on one line of JSON or in a table") {
  const auto show = [](const std::string& options, const Variables& all) {
    return run_program(words(DDP_BIN_DIR "/ddp-env " + options),
                       {.environment = {all.begin(), all.end()}})
        .out;
  };
  for (const ddp::Launcher& launcher : ddp::launchers().subspan(1)) {  // without the flags
    const Variables all = of(launcher.name);
    const ddp::LaunchEnvironment environment = read(all);
    const std::string line = show("--json", all);
    CHECK(line.find('\n') == line.size() - 1);
    const nlohmann::json document = nlohmann::json::parse(line);
    CHECK(document.at("local_world_size") == environment.local_world_size);
    CHECK(document.at("evidence").size() == environment.evidence.size());
    const std::string table = show("", all);
    for (const ddp::Evidence& fact : environment.evidence) {
      CHECK(contains(table, fact.source));
    }
  }
  const Variables odd = with(of("torchrun"), "TORCHELASTIC_RUN_ID=\xff\xfe\n");
  CHECK_NOTHROW(nlohmann::json::parse(show("--json", odd)));
  CHECK(contains(show("", odd), "\\n"));
}

TEST_CASE("ddp-env names who computes LibTorch's matrix products") {
  const auto blas = [](const std::string& preloaded) {
    const RunOptions run = {.environment = {{"LD_PRELOAD", preloaded}}};
    const std::string table = run_program({DDP_BIN_DIR "/ddp-env"}, run).out;
    CHECK(contains(table, "blas.path "));
    const auto result = run_program({DDP_BIN_DIR "/ddp-env", "--json"}, run);
    return nlohmann::json::parse(result.out).at("blas").get<std::map<std::string, std::string>>();
  };
  const std::string processor = ddp::read_text("/proc/cpuinfo");
  const bool has_avx512 = contains(processor, " avx512vl");
  const bool is_intel = contains(processor, "GenuineIntel");
  const auto alone = blas("");
  const bool is_mkl = contains(alone.at("version"), "MKL 20");
  const auto answered = blas(DDP_BLAS_DIR "/libonly_mkl_serv_intel_cpu_true.so");
  const auto second = blas(DDP_BLAS_DIR "/libonly_sgemm_.so");
  for (const auto& [who, found, warns, wide] : {
           std::tuple{"alone", alone, has_avx512 && !is_intel, has_avx512 && is_intel},
           std::tuple{"answered", answered, false, has_avx512},
       }) {
    INFO(who);
    CHECK(contains(found.at("path"), "/libtorch_cpu.so") == is_mkl);
    CHECK(contains(found.at("code_path"), "AVX512") == (is_mkl && wide));
    CHECK(contains(found.at("warning"), "AVX-512") == (is_mkl && warns));
  }
  CHECK((alone.at("code_path") == answered.at("code_path")) == (!is_mkl || is_intel));
  CHECK(second.at("path") == DDP_BLAS_DIR "/libonly_sgemm_.so");
  CHECK(contains(second.at("warning"), second.at("path")));
  CHECK(second.at("version").empty());
}
