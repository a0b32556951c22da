// Environments that no process may start in: the real programs refuse them, at once, and before
// they ask the kernel for a socket. Which ones they are is held by launch_environment_test; here
// stands what only a process can show, on some of each kind.
#include <algorithm>
#include <csignal>
#include <iostream>
#include <limits>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/bad_environments.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::BadEnvironment;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using ddp::test::Variables;
using ddp::test::with;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";
const std::vector<std::string> kDdpEnv = {kBin + "ddp-env"};
const std::vector<std::string> kStage04 = {kBin + "04_ddp_launcher", "2", "1"};
const std::vector<std::string> kStage05 = {kBin + "05_multinode", "2", "1"};
const std::vector<std::string> kStage03 = {kBin + "03_ddp_spawn", "2", "1"};
constexpr int kTries = 10;

/// In this environment alone, and killed by SIGSYS if it asks for a socket.
RunResult run(std::vector<std::string> argv, const Variables& variables) {
  RunOptions options;
  options.clear_environment = true;
  options.environment = {variables.begin(), variables.end()};
  options.timeout_seconds = 30;  // less than any rendezvous would wait
  argv.insert(argv.begin(), DDP_WITHOUT_SOCKETS);
  return run_program(argv, options);
}

/// The least CPU time of some tries: other work on the machine and cold caches do not count.
template <typename Run>
double least_cpu_seconds(double good_enough, Run run_once) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries && least >= good_enough; ++i) {
    least = std::min(least, run_once().cpu_seconds);
  }
  return least;
}

/// The limit is 0.2 s; where the loading of LibTorch alone, before main(), takes as long, a quarter
/// more than that.
void check_refused(const std::vector<std::string>& program, size_t every_nth) {
  const double loading_seconds = least_cpu_seconds(0, [&] {
    return run_program({program.front(), "--help"});
  });
  const double limit_seconds = std::max(0.2, 1.25 * loading_seconds);
  size_t checked = 0;
  for (const auto& kind :
       {ddp::test::environments_with_no_number(), ddp::test::environments_with_a_gap(),
        ddp::test::contradictory_environments()}) {
    for (size_t i = 0; i < kind.size(); i += every_nth, ++checked) {
      const BadEnvironment& bad = kind[i];
      const RunResult result = run(program, bad.variables);
      INFO(program.front() << " with " << ddp::test::describe(bad.variables));
      INFO("signal " << result.signal << (result.signal == SIGSYS ? ": it asked for a socket" : "")
                     << ", stdout: " << result.out << ", stderr: " << result.err);
      CHECK(result.exit_code == 2);
      CHECK(result.out.empty());
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
      CHECK(result.err.find(": error: ") != std::string::npos);
      CHECK(ddp::test::names(result.err, bad.named));
      CHECK((result.cpu_seconds < limit_seconds || least_cpu_seconds(limit_seconds, [&] {
                                                     return run(program, bad.variables);
                                                   }) < limit_seconds));
    }
  }
  std::cout << program.front() << ": " << checked << " environments, each within " << limit_seconds
            << " s of CPU time\n";
}

}  // namespace

TEST_CASE("ddp-env refuses bad environments at once") {
  check_refused(kDdpEnv, 10);
}

TEST_CASE("the stages refuse bad environments at once, before they open a socket") {
  check_refused(kStage04, 23);
  check_refused(kStage05, 97);
  check_refused(kStage03, 89);
}

TEST_CASE("a good environment does come to the socket, and the limit does see it") {
  const Variables good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  CHECK(run(kDdpEnv, good).exit_code == 0);
  CHECK(run(kStage04, good).signal == SIGSYS);
  CHECK(run(kStage05, good).signal == SIGSYS);
}

TEST_CASE("a stage in a batch script that no srun has started says so, and trains") {
  const std::string note =
      ": note: SLURM_NTASKS is 4, but this process is in no step of the job and trains alone; "
      "start me with srun\n";
  const Variables batch = {{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}};
  const Variables small = with(batch, {{"SLURM_NTASKS", "1"}, {"SLURM_NNODES", "1"}});
  const ddp::ScratchFolder folder("ddp-batch");
  RunOptions options;
  options.cwd = folder.path();
  options.clear_environment = true;
  for (const std::string program : {"04_ddp_launcher", "05_multinode", "01_single_gpu"}) {
    for (const Variables& variables : {batch, small}) {
      options.environment = {variables.begin(), variables.end()};
      const RunResult result = run_program({kBin + program, "1", "1", "--quiet"}, options);
      INFO(program << ": " << result.err);
      CHECK(result.exit_code == 0);
      const bool told = program != "01_single_gpu" && variables == batch;
      CHECK(result.err == (told ? program + note : ""));
    }
  }
}

TEST_CASE("Slurm's node list is read where there is no scontrol") {
  const Variables step = with(ddp::test::kSlurm, {{"SLURM_STEP_NODELIST", "a,b[1-2]"},
                                                  {"SLURM_STEP_NUM_NODES", "3"},
                                                  {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                                                  {"PATH", "/nowhere"}});
  std::vector<std::string> argv = kDdpEnv;
  argv.push_back("--json");
  const RunResult result = run(argv, step);
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.out.find(R"("host":"a")") != std::string::npos);
  CHECK(result.out.find(R"("num_nodes":3)") != std::string::npos);
}
