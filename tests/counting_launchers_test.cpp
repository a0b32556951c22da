// Launchers that count processes and tell them no place to meet: their ranks train together, to the
// bits of stage 03. MPICH's Hydra is run; of the others what they set is set.
#include <sys/types.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/held_port.hpp"
#include "tests/support/processes.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using ddp::test::words;
using Variables = std::map<std::string, std::optional<std::string>>;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";

/// What the other launchers' tests train.
std::vector<std::string> command(const std::string& program) {
  std::string workload;
  std::getline(std::ifstream(std::string(DDP_SOURCE_DIR) + "/tests/data/launcher_workload.txt"),
               workload);
  return words(kBin + program + " " + workload);
}

/// "digest 5d41402abc4b2a76" of the last line.
std::string digest_of(const RunResult& result) {
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  const size_t found = result.out.find("digest ");
  REQUIRE(found != std::string::npos);
  return result.out.substr(found, 23);
}

std::string digest_of_stage_03(const std::string& folder) {
  RunOptions options;
  options.cwd = folder;
  std::vector<std::string> argv = command("03_ddp_spawn");
  argv.insert(argv.end(), {"--nprocs", "2"});
  return digest_of(run_program(argv, options));
}

/// Two ranks, the first and the second. Whatever launched this test says nothing to them.
std::vector<RunResult> run_two(const std::vector<std::string>& argv, const std::string& folder,
                               const std::function<Variables(const std::string&)>& of_rank) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (const std::string rank : {"0", "1"}) {
    RunOptions options;
    options.cwd = folder;
    options.clear_environment = true;
    options.environment = of_rank(rank);
    ranks.push_back(std::make_unique<Program>(argv, options));
  }
  std::vector<RunResult> results;
  for (const auto& rank : ranks) {
    results.push_back(rank->wait());
  }
  return results;
}

std::vector<std::string> under_hydra(const std::vector<std::string>& argv) {
  std::vector<std::string> line = {DDP_HYDRA, "-n", "2"};
  line.insert(line.end(), argv.begin(), argv.end());
  return line;
}

}  // namespace

TEST_CASE("two ranks of PALS, Flux and jsrun train together, once") {
  const ddp::ScratchFolder folder("ddp-launchers");
  const std::string expected = digest_of_stage_03(folder.path());
  const std::vector<std::function<Variables(const std::string&)>> launchers = {
      [](const std::string& rank) -> Variables {
        return {{"PALS_RANKID", rank},  {"PALS_LOCAL_RANKID", rank}, {"PALS_LOCAL_SIZE", "2"},
                {"PALS_APID", "job-1"}, {"PALS_NODEID", "0"},        {"PMI_RANK", rank},
                {"PMI_SIZE", "2"},      {"PMI_LOCAL_RANK", rank},    {"PMI_LOCAL_SIZE", "2"}};
      },
      [](const std::string& rank) -> Variables {
        return {{"FLUX_TASK_RANK", rank}, {"FLUX_TASK_LOCAL_ID", rank}, {"FLUX_JOB_SIZE", "2"},
                {"FLUX_JOB_NNODES", "1"}, {"FLUX_JOB_ID", "\u0192AbC"}, {"PMI_RANK", rank},
                {"PMI_SIZE", "2"}};
      },
      [](const std::string& rank) -> Variables {
        return {{"JSM_NAMESPACE_RANK", rank},
                {"JSM_NAMESPACE_SIZE", "2"},
                {"JSM_NAMESPACE_LOCAL_RANK", rank},
                {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                {"LSB_JOBID", "77"},
                {"PMIX_NAMESPACE", "1"},
                {"PMIX_RANK", rank}};
      }};
  for (const auto& launcher : launchers) {
    const auto results =
        run_two(command("04_ddp_launcher"), folder.path(), [&](const std::string& rank) {
          Variables variables = launcher(rank);
          variables["TMPDIR"] = folder.path();
          return variables;
        });
    INFO(launcher("0").begin()->first);
    CHECK(digest_of(results[0]) == expected);
    CHECK(results[1].exit_code == 0);
    CHECK(results[1].out.find("digest") == std::string::npos);  // it is not alone
  }
}

TEST_CASE("two pods train together, though the first one's name is not known at first") {
  const ddp::ScratchFolder folder("ddp-launchers");
  const std::string expected = digest_of_stage_03(folder.path());
  const ddp::test::HeldPort port;
  const auto pod = [&port](const std::string& tries) {
    return [&port, tries](const std::string& rank) -> Variables {
      return {{"RANK", rank},
              {"WORLD_SIZE", "2"},
              {"MASTER_ADDR", "job-master-0"},
              {"MASTER_PORT", port.number()},
              {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
              {"LD_PRELOAD", DDP_LATE_NAMES},
              {"DDP_LATE_NAME", "job-master-0"},
              {"DDP_LATE_TRIES", tries}};
    };
  };
  std::vector<std::string> argv = command("04_ddp_launcher");
  const auto results = run_two(argv, folder.path(), pod("2"));
  CHECK(digest_of(results[0]) == expected);
  CHECK(results[1].exit_code == 0);

  argv.insert(argv.end(), {"--timeout", "2"});
  for (const RunResult& result : run_two(argv, folder.path(), pod("1000000"))) {
    INFO(result.err);
    CHECK(result.exit_code == 75);
    CHECK(result.err.find("MASTER_ADDR=job-master-0 cannot be resolved") != std::string::npos);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

TEST_CASE("Hydra: two ranks train together, also where each has a shell of its own", "[hydra]") {
  const ddp::ScratchFolder folder("ddp-launchers");
  RunOptions options;
  options.cwd = folder.path();
  const std::string expected = digest_of_stage_03(folder.path());
  const RunResult shown = run_program(under_hydra({kBin + "ddp-env", "--json"}), options);
  REQUIRE(shown.exit_code == 0);
  std::istringstream lines(shown.out);
  std::vector<nlohmann::json> ranks;
  for (std::string line; std::getline(lines, line);) {
    ranks.push_back(nlohmann::json::parse(line));
  }
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0]["launcher"] == "hydra");
  CHECK(ranks[0]["local_world_size"] == 2);
  CHECK(ranks[0]["local_rank"] != ranks[1]["local_rank"]);
  CHECK(ranks[0]["store"] == ranks[1]["store"]);

  CHECK(digest_of(run_program(under_hydra(command("04_ddp_launcher")), options)) == expected);
  std::vector<std::string> in_shells = {"sh", "-c", "\"$@\"; exit $?", "sh"};
  const std::vector<std::string> argv = command("04_ddp_launcher");
  in_shells.insert(in_shells.end(), argv.begin(), argv.end());
  CHECK(digest_of(run_program(under_hydra(in_shells), options)) == expected);
}

TEST_CASE("Hydra: programs that are one process, or start their own, refuse to be started twice",
          "[hydra]") {
  const ddp::ScratchFolder folder("ddp-launchers");
  RunOptions options;
  options.cwd = folder.path();
  for (const std::string program : {"01_single_gpu", "02_data_parallel", "03_ddp_spawn"}) {
    const RunResult result = run_program(under_hydra({kBin + program, "1", "1"}), options);
    INFO(result.out << result.err);
    CHECK(result.exit_code == 2);
    CHECK((result.out + result.err).find("world size 2 (hydra)") != std::string::npos);
  }
}

TEST_CASE("Hydra: no rank outlives it, whichever of its processes is killed", "[hydra]") {
  const ddp::ScratchFolder folder("ddp-launchers");
  RunOptions options;
  options.cwd = folder.path();
  for (const bool proxy : {false, true}) {
    INFO((proxy ? "hydra_pmi_proxy" : "mpiexec.hydra"));
    Program hydra(under_hydra({kBin + "04_ddp_launcher", "1000000", "1000000"}), options);
    REQUIRE(hydra.wait_for_output("[CPU1] Epoch 1 "));
    const std::vector<pid_t> proxies = ddp::test::children_of(hydra.pid());
    REQUIRE(proxies.size() == 1);
    const std::vector<pid_t> ranks = ddp::test::children_of(proxies.front());
    REQUIRE(ranks.size() == 2);
    kill(proxy ? proxies.front() : hydra.pid(), SIGKILL);
    CHECK(ddp::test::all_gone_within(ranks, 10));
  }
}
