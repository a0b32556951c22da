// Who am I: every launcher's good environment, and missing, malformed or contradictory variables.
#include "common/launch/launch_environment.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/bad_environments.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::kCondor;
using ddp::test::kFlux;
using ddp::test::kHydra;
using ddp::test::kJsrun;
using ddp::test::kOpenMpi;
using ddp::test::kPals;
using ddp::test::kPlain;
using ddp::test::kSlurm;
using ddp::test::kSpawn;
using ddp::test::kTorchrun;
using ddp::test::Variables;
using ddp::test::with;
using ddp::test::without;
using ddp::test::words;
using Kind = ddp::StoreLocation::Kind;
using namespace nlohmann::literals;

ddp::LaunchEnvironment read(const Variables& variables, const ddp::Options& options = {}) {
  return ddp::read_launch_environment(
      options, [&variables](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      });
}

/// What ddp-env --json says, but for the evidence.
nlohmann::json identity(const Variables& variables, const ddp::Options& options = {}) {
  nlohmann::json document = nlohmann::json::parse(ddp::describe(read(variables, options), true));
  document.erase("evidence");
  return document;
}

/// Refused as usage error, in one line that names `name`.
void check_refused(const Variables& variables, const std::string& name,
                   const ddp::Options& options = {}) {
  std::string message = "(accepted)";
  try {
    read(variables, options);
  } catch (const ddp::UsageError& error) {
    message = error.what();
  }
  INFO(ddp::test::describe(variables));
  INFO(message);
  CHECK(ddp::test::names(message, name));
  CHECK(message.find("expected") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

}  // namespace

TEST_CASE("each launcher's variables make an identity and a place to meet") {
  CHECK(identity({}) == R"({
      "launcher": "none", "rank": 0, "world_size": 1, "local_rank": 0, "local_world_size": 1,
      "node_rank": 0, "num_nodes": 1, "restart_count": 0, "store": {"kind": "none", "host": "",
      "port": 0, "fd": -1, "sealed": false, "file": "", "prefix": ""}})"_json);
  CHECK(read({}).evidence.empty());
  CHECK(identity(kTorchrun) == R"({
      "launcher": "torchrun", "rank": 3, "world_size": 4, "local_rank": 1, "local_world_size": 2,
      "node_rank": 1, "num_nodes": 2, "restart_count": 2, "store": {"kind": "agent_tcp",
      "host": "n1", "port": 29400, "fd": -1, "sealed": false, "file": "", "prefix": "torchrun/job7/2"}})"_json);
  CHECK(identity(kSpawn) == R"({
      "launcher": "spawn", "rank": 0, "world_size": 2, "local_rank": 0, "local_world_size": 2,
      "node_rank": 0, "num_nodes": 1, "restart_count": 0, "store": {"kind": "inherited_file",
      "host": "", "port": 0, "fd": 3, "sealed": false, "file": "", "prefix": "spawn/0"}})"_json);
  CHECK(identity(kPlain) == R"({
      "launcher": "environment", "rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2,
      "node_rank": 0, "num_nodes": 1, "restart_count": 0, "store": {"kind": "tcp",
      "host": "localhost", "port": 29500, "fd": -1, "sealed": false, "file": "",
      "prefix": "environment/0"}})"_json);
  CHECK(identity(with(kSlurm, {{"MASTER_PORT", "29500"}})) == R"({
      "launcher": "slurm", "rank": 2, "world_size": 3, "local_rank": 0, "local_world_size": 1,
      "node_rank": 1, "num_nodes": 2, "restart_count": 0, "store": {"kind": "tcp", "host": "n1",
      "port": 29500, "fd": -1, "sealed": false, "file": "", "prefix": "slurm/12.0/0"}})"_json);
  const std::string name = "/ddp-store-" + std::to_string(geteuid()) + "-";
  nlohmann::json open_mpi = R"({
      "launcher": "openmpi", "rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2,
      "node_rank": 0, "num_nodes": 1, "restart_count": 0, "store": {"kind": "meeting_file",
      "host": "", "port": 0, "fd": -1, "sealed": false, "prefix": "openmpi/2096300033/0"}})"_json;
  open_mpi["store"]["file"] = "/tmp/ompi.host.0/pid.4109" + name + "2096300033/store";
  CHECK(identity(kOpenMpi) == open_mpi);
  nlohmann::json condor = R"({
      "launcher": "htcondor", "rank": 1, "world_size": 3, "local_rank": 0, "local_world_size": 1,
      "node_rank": 1, "num_nodes": 3, "restart_count": 0, "store": {"kind": "shared_file",
      "port": 0, "fd": -1, "sealed": false, "prefix": "htcondor/345/0"}})"_json;
  condor["store"]["file"] = "/home/me/run" + name + "345";
  condor["store"]["host"] = read(kCondor).store.host;
  CHECK(identity(kCondor) == condor);
  CHECK(!read(kCondor).store.host.empty());
}

TEST_CASE("a key seals a store on a network, and nobody prints it") {
  const Variables key = {{"DDP_STORE_KEY", "0123456789abcdefABCDEF0123456789"}};
  for (const Variables& on_network : {kTorchrun, kPlain, kSlurm, kCondor}) {
    const ddp::LaunchEnvironment environment = read(with(on_network, key));
    CHECK(environment.store.key == key.at("DDP_STORE_KEY"));
    CHECK(identity(with(on_network, key))["store"]["sealed"] == true);
    for (const bool json : {false, true}) {
      CHECK(ddp::describe(environment, json).find("0123456789") == std::string::npos);
    }
  }
  for (const Variables& on_host : {kSpawn, kOpenMpi, Variables{}}) {
    CHECK(identity(with(on_host, key))["store"]["sealed"] == false);
  }
}

TEST_CASE("torchrun") {
  SECTION("the agent's store: exactly True, and only at its own address") {
    for (const char* const flag : {"False", "true", "TRUE", "1", ""}) {
      CHECK(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", flag}})).store.kind ==
            Kind::kTcp);
    }
    ddp::Options elsewhere;
    elsewhere.master_addr = "n2";
    CHECK(read(kTorchrun, elsewhere).store.kind == Kind::kTcp);
    CHECK(read(kTorchrun, elsewhere).store.host == "n2");
  }
  SECTION("--virtual-local-rank: everybody's local rank is 0") {
    CHECK(read(with(kTorchrun, {{"LOCAL_RANK", "0"}})).local_rank == 0);
  }
  SECTION("different numbers of processes on the nodes") {
    CHECK(read(with(kTorchrun, {{"WORLD_SIZE", "5"}})).num_nodes == 2);
  }
  SECTION("nodes are derived when nobody counts them") {
    const auto derived = read(without(kTorchrun, {"GROUP_RANK", "GROUP_WORLD_SIZE"}));
    CHECK(derived.node_rank == 1);
    CHECK(derived.num_nodes == 2);
  }
  SECTION("one process has nobody to meet") {
    const auto single = read(with(kTorchrun, {{"RANK", "0"},
                                              {"WORLD_SIZE", "1"},
                                              {"LOCAL_RANK", "0"},
                                              {"LOCAL_WORLD_SIZE", "1"},
                                              {"GROUP_RANK", "0"},
                                              {"GROUP_WORLD_SIZE", "1"}}));
    CHECK(single.launcher == "torchrun");
    CHECK(single.store.kind == Kind::kNone);
    CHECK(single.restart_count == 2);
  }
  SECTION("it is the innermost launcher") {
    Variables nested = with(with(kSlurm, kOpenMpi), kTorchrun);
    CHECK(read(nested).launcher == "torchrun");
    CHECK(read(nested).rank == 3);
    nested["SLURM_RESTART_COUNT"] = "1";
    CHECK(read(nested).restart_count == 3);
  }
}

TEST_CASE("our own spawn: all ranks have the store's file, and a requeued job is a restart") {
  const auto second = read(with(kSpawn, {{"RANK", "1"}, {"LOCAL_RANK", "1"}}));
  CHECK(second.rank == 1);
  CHECK(second.store.fd == 3);
  CHECK(second.store.prefix == "spawn/0");
  CHECK(read(with(kSpawn, {{"SLURM_JOB_ID", "1"}, {"SLURM_RESTART_COUNT", "2"}})).restart_count ==
        2);
}

TEST_CASE("plain variables") {
  // Elsewhere, nothing says who shares a node.
  const Variables remote = with(kPlain, {{"MASTER_ADDR", "n1.cluster"}});
  check_refused(remote, "LOCAL_RANK");
  check_refused(with(remote, {{"LOCAL_RANK", "0"}}), "LOCAL_WORLD_SIZE");
  CHECK(read(with(remote, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}})).num_nodes == 2);
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).store.kind == Kind::kNone);
  CHECK(read(with(kPlain, {{"MASTER_ADDR", "[::1]"}})).store.host == "::1");
  for (const std::string& host : words("::1 fe80::1%eth0 10.0.0.1 n-1.a_b")) {
    CHECK(
        read(with(kPlain, {{"MASTER_ADDR", host}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}))
            .store.host == host);
  }
  // A wrapper that copies mpirun's numbers.
  CHECK(read(with(kPlain, kOpenMpi)).launcher == "environment");
}

TEST_CASE("explicit flags override every launcher") {
  ddp::Options options;
  options.rank = 1;
  options.world_size = 2;
  options.master_addr = "localhost";
  options.master_port = 29500;
  for (const Variables& outer :
       {Variables{}, kTorchrun, kSpawn, kOpenMpi, kSlurm, kCondor, kFlux, kHydra, kJsrun, kPals}) {
    const auto environment = read(without(outer, {"GROUP_RANK"}), options);
    CHECK(environment.launcher == "flags");
    CHECK(environment.rank == 1);
    CHECK(environment.local_rank == 1);
    CHECK(environment.store.host == "localhost");
  }
  options.master_addr = "n1";
  check_refused({}, "--local-rank", options);
  options.local_rank = 0;
  check_refused({}, "--local-world-size", options);
  options.local_world_size = 1;
  CHECK(read({}, options).num_nodes == 2);
  options.local_rank = 1;
  check_refused({}, "--local-rank", options);
  options.local_rank = 0;
  options.rank = 2;
  check_refused({}, "--rank", options);
  options.rank.reset();
  check_refused({}, "--rank", options);
  options.rank = 0;
  options.world_size.reset();
  check_refused({}, "--world-size", options);
  options.world_size = 2;
  options.master_port.reset();
  check_refused({}, "MASTER_PORT", options);
  options.master_addr.clear();
  check_refused({}, "MASTER_ADDR", options);
  CHECK(read({{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}}, options).world_size == 2);
  options.local_world_size = 3;
  check_refused({{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1"}}, "--local-world-size",
                options);
  ddp::Options alone;
  alone.master_addr = "n1";
  check_refused({}, "--rank", alone);
}

TEST_CASE("Open MPI") {
  CHECK(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))
            .store.file == read(kOpenMpi).store.file);
  const std::string odd =
      read(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-1@1/../x"}})).store.file;
  CHECK(odd.ends_with("/store"));
  CHECK(odd.rfind('/', odd.size() - sizeof("/store")) == kOpenMpi.at("PMIX_SERVER_TMPDIR").size());

  SECTION("an address was passed on") {
    const auto tcp = read(with(kOpenMpi, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}}));
    CHECK(tcp.store.kind == Kind::kTcp);
    CHECK(tcp.store.port == 29500);
    ddp::Options options;
    options.master_addr = "n1";
    options.master_port = 29500;
    CHECK(read(kOpenMpi, options).store.kind == Kind::kTcp);
  }
  SECTION("several nodes") {
    const Variables two_nodes = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"},
                                                {"OMPI_COMM_WORLD_RANK", "3"},
                                                {"MASTER_ADDR", "n1"},
                                                {"MASTER_PORT", "29500"}});
    CHECK(read(two_nodes).num_nodes == 2);
    CHECK(read(two_nodes).node_rank == 1);
    // Ranks that go round: 0 and 2 on the first node, 1 and 3 on the second.
    const Variables round =
        with(two_nodes, {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
    CHECK(read(round).node_rank == 0);
    // A local rank may be as high as the global one, on the first node.
    CHECK(read(with(round, {{"OMPI_COMM_WORLD_RANK", "1"}})).local_rank == 1);
    check_refused(without(two_nodes, {"MASTER_ADDR", "MASTER_PORT"}), "-x MASTER_ADDR");
  }
  SECTION("WORLD_SIZE may be exported too, if it agrees") {
    CHECK(read(with(kOpenMpi, {{"WORLD_SIZE", "2"}})).launcher == "openmpi");
    check_refused(with(kOpenMpi, {{"WORLD_SIZE", "4"}}), "WORLD_SIZE");
  }
  SECTION("inside a Slurm job it is the inner launcher") {
    CHECK(read(with(kSlurm, kOpenMpi)).launcher == "openmpi");
  }
}

TEST_CASE("a Slurm step") {
  const ddp::LaunchEnvironment environment = read(kSlurm);
  CHECK(environment.store.host == "n1");
  CHECK(environment.store.peer == "n2");
  CHECK(environment.store.port >= 20000);
  CHECK(environment.store.port < 32000);

  SECTION("every rank computes the same port, another step or restart most likely another") {
    const auto first =
        read(with(kSlurm, {{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "0"}}));
    CHECK(first.local_world_size == 2);
    CHECK(first.store.port == environment.store.port);
    CHECK(read(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).store.port != environment.store.port);
    const auto restarted = read(with(kSlurm, {{"SLURM_RESTART_COUNT", "1"}}));
    CHECK(restarted.restart_count == 1);
    CHECK(restarted.store.port != environment.store.port);
  }
  SECTION("on one node no port is needed, and every step and restart has a place of its own") {
    const Variables one_node = with(kSlurm, {{"SLURM_PROCID", "1"},
                                             {"SLURM_LOCALID", "1"},
                                             {"SLURM_NODEID", "0"},
                                             {"SLURM_STEP_NUM_NODES", "1"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "3"},
                                             {"SLURM_STEP_NODELIST", "n1"}});
    const std::string folder = "/ddp-store-" + std::to_string(geteuid());
    CHECK(read(one_node).store.kind == Kind::kMeetingFile);
    CHECK(read(one_node).store.file == "/tmp" + folder + "-12.0.0/store");
    CHECK(read(with(one_node, {{"SLURM_RESTART_COUNT", "1"}, {"TMPDIR", "/scratch"}})).store.file ==
          "/scratch" + folder + "-12.0.1/store");
    const auto exported = read(with(one_node, {{"MASTER_PORT", "29500"}}));
    CHECK(exported.store.kind == Kind::kTcp);
    CHECK(exported.store.host == "n1");
  }
  SECTION("exported addresses win") {
    const auto exported = read(
        with(kSlurm, {{"MASTER_ADDR", "n1-ib"}, {"MASTER_PORT", "29500"}, {"WORLD_SIZE", "3"}}));
    CHECK(exported.launcher == "slurm");
    CHECK(exported.store.host == "n1-ib");
    CHECK(exported.store.port == 29500);
  }
  SECTION("the batch shell is not a step") {
    const auto batch = read(without(kSlurm, {"SLURM_STEP_ID"}));
    CHECK(batch.launcher == "none");
    CHECK(batch.world_size == 1);
    CHECK(read(with(without(kSlurm, {"SLURM_STEP_ID"}), {{"SLURM_RESTART_COUNT", "1"}}))
              .restart_count == 1);
    // Its tasks would each train alone: whoever runs a stage there is told.
    CHECK(batch.note.find("SLURM_NTASKS is 8") == 0);
    CHECK(read({{"SLURM_JOB_ID", "12"}, {"SLURM_NNODES", "2"}}).note.find("SLURM_NNODES is 2") ==
          0);
    CHECK(read({{"SLURM_JOB_ID", "12"}, {"SLURM_NTASKS", "1"}, {"SLURM_NNODES", "1"}}).note == "");
    CHECK(read({{"SLURM_NTASKS", "8"}}).note == "");
    CHECK(environment.note == "");
  }
  SECTION("an old or small step without SLURM_STEP_* counts") {
    const auto job =
        read(with(without(kSlurm, {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
                                   "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"}),
                  {{"SLURM_NTASKS", "7"},
                   {"SLURM_NNODES", "4"},
                   {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                   {"SLURM_JOB_NODELIST", "n[01-04]"}}));
    CHECK(job.world_size == 7);
    CHECK(job.local_world_size == 2);
    CHECK(job.store.host == "n01");
  }
  SECTION("the interactive step of salloc has a number near 2^32") {
    CHECK(read(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).world_size == 3);
  }
}

TEST_CASE("HTCondor: an address that was passed on") {
  CHECK(read(with(kCondor, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "9618"}})).store.kind ==
        Kind::kTcp);
}

TEST_CASE("launchers that only count") {
  struct Example {
    Variables variables;
    std::string launcher;
    std::string folder;
    std::string job;
    std::string as_file_name;
  };
  for (const auto& [variables, launcher, folder, job, as_file_name] :
       std::vector<Example>{{kFlux, "flux", "/run/user/7/job",
                             "\xc6\x92"
                             "AbC",
                             "__AbC"},
                            {kHydra, "hydra", "/tmp", "9d260000-7c26", "9d260000-7c26"},
                            {kJsrun, "jsrun", "/tmp", "77-3", "77-3"},
                            {kPals, "pals", "/tmp", "a1-b2", "a1-b2"}}) {
    INFO(launcher);
    nlohmann::json expected = R"({
        "rank": 1, "world_size": 2, "local_rank": 1, "local_world_size": 2, "node_rank": 0,
        "num_nodes": 1, "restart_count": 0,
        "store": {"kind": "meeting_file", "host": "", "port": 0, "fd": -1, "sealed": false}})"_json;
    expected["launcher"] = launcher;
    expected["store"]["prefix"] = launcher + "/" + job + "/0";
    expected["store"]["file"] =
        folder + "/ddp-store-" + std::to_string(geteuid()) + "-" + as_file_name + "/store";
    CHECK(identity(variables) == expected);
    // An address that was passed on wins, in a requeued job too; HTCondor and PBS only wait
    // outside.
    const auto passed = read(with(variables, {{"MASTER_ADDR", "n1"},
                                              {"MASTER_PORT", "29500"},
                                              {"SLURM_JOB_ID", "5"},
                                              {"SLURM_RESTART_COUNT", "2"},
                                              {"_CONDOR_PROCNO", "0"},
                                              {"PBS_TASKNUM", "2"}}));
    CHECK(passed.launcher == launcher);
    CHECK(passed.store.kind == Kind::kTcp);
    CHECK(passed.store.host == "n1");
    CHECK(passed.restart_count == 2);
    CHECK(read(with(variables, kTorchrun)).launcher == "torchrun");
    CHECK(read(with(variables, kOpenMpi)).launcher == "openmpi");
  }
  SECTION("several nodes: ranks fill them or go round") {
    const Variables address = {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
    const auto filled = read(with(
        with(kHydra, address), {{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}, {"MPI_LOCALRANKID", "0"}}));
    CHECK(filled.num_nodes == 2);
    CHECK(filled.node_rank == 1);
    const auto round = read(with(with(kFlux, address), {{"FLUX_JOB_SIZE", "4"},
                                                        {"FLUX_JOB_NNODES", "2"},
                                                        {"FLUX_TASK_RANK", "2"},
                                                        {"FLUX_TASK_LOCAL_ID", "1"}}));
    CHECK(round.local_world_size == 2);
    CHECK(round.node_rank == 0);
  }
  SECTION("one process has nobody to meet, and needs no job's name") {
    CHECK(read({{"PMI_RANK", "0"},
                {"PMI_SIZE", "1"},
                {"MPI_LOCALRANKID", "0"},
                {"MPI_LOCALNRANKS", "1"}})
              .store.kind == Kind::kNone);
  }
  SECTION("PALS: what Cray's PMI says where PALS does not") {
    CHECK(read(without(kPals, {"PALS_LOCAL_SIZE"})).local_world_size == 2);
  }
}

TEST_CASE("a Slurm step with what other launchers set") {
  // srun for an MPI that asks for PMI-2, PMIx or Cray's PMI.
  const Variables pmi = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_FD", "6"}};
  const Variables pmix = {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.12.0"}};
  const Variables cray = {{"PALS_RANKID", "2"},
                          {"PALS_LOCAL_RANKID", "0"},
                          {"PALS_APID", "12.0"},
                          {"PMI_LOCAL_RANK", "0"},
                          {"PMI_LOCAL_SIZE", "1"}};
  for (const Variables& more : {pmi, pmix, with(pmi, cray)}) {
    CHECK(read(with(kSlurm, more)).launcher == "slurm");
    CHECK(read(with(kSlurm, more)).rank == 2);
  }
  // Hydra starts its proxies, and Flux its brokers, by a step of one task per node.
  const Variables step = with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "2"},
                                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                       {"SLURM_PROCID", "1"},
                                       {"MASTER_ADDR", "n1"},
                                       {"MASTER_PORT", "29500"}});
  for (const Variables& inner : {kHydra, kFlux}) {
    const auto environment = read(with(step, inner));
    CHECK(environment.launcher != "slurm");
    CHECK(environment.rank == 1);
    CHECK(environment.local_world_size == 2);
    CHECK(environment.evidence.back().what == "outer");
  }
  CHECK(read(with(step, with(kHydra, {{"PMI_SIZE", "4"}}))).num_nodes == 2);
  // A script that Hydra started calls srun.
  const Variables script = {
      {"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
  CHECK(read(with(kSlurm, script)).launcher == "slurm");
}

TEST_CASE("Kubernetes") {
  // As the training operator sets them: no LOCAL_RANK, and a name that leads elsewhere.
  const Variables pod = with(kPlain, {{"MASTER_ADDR", "job-master-0"},
                                      {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                                      {"PET_NNODES", "2"},
                                      {"PET_NODE_RANK", "1"},
                                      {"PET_NPROC_PER_NODE", "auto"}});
  CHECK(identity(pod) == R"({
      "launcher": "kubernetes", "rank": 1, "world_size": 2, "local_rank": 0, "local_world_size": 1,
      "node_rank": 1, "num_nodes": 2, "restart_count": 0, "store": {"kind": "tcp",
      "host": "job-master-0", "port": 29500, "fd": -1, "sealed": false, "file": "",
      "prefix": "environment/0"}})"_json);
  // What is said by hand keeps its meaning: two ranks of one pod.
  const auto by_hand = read(with(pod, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}));
  CHECK(by_hand.launcher == "environment");
  CHECK(by_hand.num_nodes == 1);
  CHECK(read(with(pod, {{"MASTER_ADDR", "localhost"}})).local_rank == 1);
  ddp::Options flags;
  flags.rank = 1;
  flags.world_size = 2;
  check_refused(without(pod, {"RANK", "WORLD_SIZE"}), "--local-rank", flags);
  // Pods of an Indexed Job may well train alone, and are told.
  const auto indexed = read({{"JOB_COMPLETION_INDEX", "3"}, {"KUBERNETES_SERVICE_HOST", "k"}});
  CHECK(indexed.world_size == 1);
  CHECK(indexed.note.find("JOB_COMPLETION_INDEX is \"3\"") == 0);
  CHECK(read({{"KUBERNETES_SERVICE_HOST", "k"}, {"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "8"}})
            .note == "");
}

TEST_CASE("a batch script that no launcher has started says so") {
  CHECK(read({{"PBS_JOBID", "7.pbs"}, {"PBS_NUM_NODES", "2"}}).note.find("PBS_NUM_NODES is 2") ==
        0);
  CHECK(read({{"PBS_JOBID", "7.pbs"}, {"PBS_NP", "8"}}).note.find("mpiexec") != std::string::npos);
  CHECK(read({{"LSB_JOBID", "7"}, {"LSB_DJOB_NUMPROC", "4"}}).note.find("jsrun") !=
        std::string::npos);
  CHECK(read({{"PBS_JOBID", "7.pbs"},
              {"PBS_NP", "1"},
              {"PBS_NUM_NODES", "1"},
              {"PBS_TASKNUM", "00000001"},
              {"LSB_JOBID", "7"},
              {"LSB_DJOB_NUMPROC", "1"}})
            .note == "");
}

TEST_CASE("environments that no process may start in are refused by the variable's name") {
  for (const auto& environments :
       {ddp::test::environments_with_no_number(), ddp::test::environments_with_a_gap(),
        ddp::test::contradictory_environments()}) {
    CHECK(environments.size() >= 30);
    for (const auto& [variables, named] : environments) {
      check_refused(variables, named);
    }
  }
}

TEST_CASE("every fact is shown with its source, on one line of JSON or in a table") {
  for (const Variables& variables :
       {kTorchrun, kSpawn, kPlain, kOpenMpi, kSlurm, kCondor, kFlux, kHydra, kJsrun, kPals}) {
    const ddp::LaunchEnvironment environment = read(variables);
    const std::string line = ddp::describe(environment, true);
    CHECK(line.find('\n') == line.size() - 1);
    CHECK(nlohmann::json::parse(line).at("evidence").size() == environment.evidence.size());
    const std::string text = ddp::describe(environment, false);
    CHECK(text.find(environment.launcher) != std::string::npos);
    for (const ddp::Evidence& fact : environment.evidence) {
      CHECK(text.find(fact.source) != std::string::npos);
    }
  }
  CHECK_NOTHROW(ddp::describe(read(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "\xff\xfe"}})), true));
}

TEST_CASE("node lists expand as scontrol does") {
  const std::vector<std::pair<std::string, std::string>> lists = {
      {"n1", "n1"},
      {"login", "login"},
      {"n[1-2]", "n1 n2"},
      {"n[1-2,07],gpu3-ib", "n1 n2 n07 gpu3-ib"},
      {"n[09-11]", "n09 n10 n11"},
      {"n[9-11]", "n9 n10 n11"},
      {"n[098-101]", "n098 n099 n100 n101"},
      {"n[1-3,07,9-11]-ib", "n1-ib n2-ib n3-ib n07-ib n9-ib n10-ib n11-ib"},
      {"r[1-2]n[01-02]", "r1n01 r1n02 r2n01 r2n02"},
      {"r[1-2]n[3,5]x", "r1n3x r1n5x r2n3x r2n5x"},
      {"a[1]b[2]c[3-4]", "a1b2c3 a1b2c4"},
      {"r[1-2]c[3-4]n[5-6]", "r1c3n5 r1c3n6 r2c3n5 r2c3n6 r1c4n5 r1c4n6 r2c4n5 r2c4n6"},
      {"n[5]", "n5"},
      {"n[0-0]", "n0"},
      {"n[2,1]", "n2 n1"},
      {"b,a,b", "b a b"},
      {"node-1.cluster.local,node_2", "node-1.cluster.local node_2"},
      {"gpu-a100-[001-002],cpu[7-8]", "gpu-a100-001 gpu-a100-002 cpu7 cpu8"},
  };
  for (const auto& [list, names] : lists) {
    INFO(list);
    CHECK(ddp::expand_node_list(list) == words(names));
  }
  CHECK(ddp::expand_node_list("n[0-65535]").size() == 65536);
  CHECK(ddp::expand_node_list(std::string(252, 'n') + "[1-9]").size() == 9);
}

TEST_CASE("malformed node lists are refused") {
  std::vector<std::string> lists = words(
      ", n1, ,n1 n1,,n2 n[ n] n[] n[1 n[1-] n[-1] n[1-2 n[2-1] n[1,] n[,1] n[1--2] n[1-2-3] n[a] "
      "n[1-b] n[[1]] n[1]] [1-2] n;rm n$(x) n[0-65536] n[0-999999999999] "
      "n[0-99999999999999999999] a[0-999]b[0-999] n[0-40000],m[0-40000] n/1 n1] n1],n2");
  lists.push_back(std::string(100000, 'n') + "[0-65535]");  // gigabytes
  lists.insert(lists.end(), {"", "n 1", "n1 n2", "n1\nn2", "n[1 -2]"});
  for (const std::string& list : lists) {
    INFO(list.substr(0, 100));
    CHECK_THROWS_AS(ddp::expand_node_list(list), ddp::UsageError);
  }
}
