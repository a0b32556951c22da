// Environments that no process may start in: the real programs refuse them, at once, and before
// they ask the kernel for a socket.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/bad_environments.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::BadEnvironment;
using ddp::test::Program;
using ddp::test::run_program;
using ddp::test::RunOptions;
using ddp::test::RunResult;
using ddp::test::Variables;
using ddp::test::with;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";
const std::string kLimiter = DDP_WITHOUT_SOCKETS;
const std::vector<std::string> kDdpEnv = {kBin + "ddp-env"};
const std::vector<std::string> kStage04 = {kBin + "04_ddp_launcher", "2", "1"};
const std::vector<std::string> kStage05 = {kBin + "05_multinode", "2", "1"};
const std::vector<std::string> kStage03 = {kBin + "03_ddp_spawn", "2", "1"};
constexpr double kLimitSeconds = 0.2;
constexpr double kLimitWallSeconds = 10;  // nor is anything waited for
constexpr int kTries = 10;

/// Of this environment alone, and killed by SIGSYS if it asks for a socket.
std::unique_ptr<Program> start(const std::vector<std::string>& argv, const Variables& variables) {
  RunOptions options;
  options.clear_environment = true;
  options.environment = {variables.begin(), variables.end()};
  std::vector<std::string> limited = {kLimiter};
  limited.insert(limited.end(), argv.begin(), argv.end());
  return std::make_unique<Program>(limited, options);
}

/// What the program costs that does nothing: LibTorch is loaded before main() begins.
double loading_seconds(const std::vector<std::string>& program) {
  double least = INFINITY;
  for (int i = 0; i < kTries; ++i) {
    least = std::min(least, run_program({program.front(), "--help"}).cpu_seconds);
  }
  return least;
}

/// CPU time, so that other work on the machine does not count, and the least of some tries, so that
/// cold caches do not. The limit is 0.2 s; where the loading alone takes as long, a quarter more
/// than that.
void check_all_refused(const std::vector<std::string>& program,
                       const std::vector<BadEnvironment>& environments) {
  const double limit_seconds = std::max(kLimitSeconds, 1.25 * loading_seconds(program));
  const size_t at_once = std::max(2U, std::thread::hardware_concurrency());
  double longest_seconds = 0;
  for (size_t first = 0; first < environments.size(); first += at_once) {
    const size_t last = std::min(first + at_once, environments.size());
    std::vector<std::unique_ptr<Program>> running;
    for (size_t i = first; i < last; ++i) {
      running.push_back(start(program, environments[i].variables));
    }
    for (size_t i = first; i < last; ++i) {
      const BadEnvironment& bad = environments[i];
      const RunResult result = running[i - first]->wait();
      double seconds = result.cpu_seconds;
      double wall_seconds = result.seconds;
      for (int again = 1; again < kTries; ++again) {
        if (seconds < limit_seconds && wall_seconds < kLimitWallSeconds) {
          break;
        }
        const RunResult other = start(program, bad.variables)->wait();
        seconds = std::min(seconds, other.cpu_seconds);
        wall_seconds = std::min(wall_seconds, other.seconds);
      }
      longest_seconds = std::max(longest_seconds, seconds);
      INFO(program.front() << " with " << ddp::test::describe(bad.variables));
      INFO("signal " << result.signal << (result.signal == SIGSYS ? ": it asked for a socket" : "")
                     << ", stdout: " << result.out << ", stderr: " << result.err);
      CHECK(result.exit_code == 2);
      CHECK(result.out.empty());
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
      CHECK(result.err.find(": error: ") != std::string::npos);
      CHECK(ddp::test::names(result.err, bad.named));
      CHECK(seconds < limit_seconds);
      CHECK(wall_seconds < kLimitWallSeconds);
    }
  }
  std::cout << program.front() << ": " << environments.size() << " environments, at most "
            << longest_seconds << " s of CPU time each, limit " << limit_seconds << " s\n";
}

std::vector<BadEnvironment> all_environments() {
  std::vector<BadEnvironment> all = ddp::test::environments_with_no_number();
  for (const auto& more :
       {ddp::test::environments_with_a_gap(), ddp::test::contradictory_environments()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::vector<BadEnvironment> every_nth(const std::vector<BadEnvironment>& all, size_t n) {
  std::vector<BadEnvironment> chosen;
  for (size_t i = 0; i < all.size(); i += n) {
    chosen.push_back(all[i]);
  }
  return chosen;
}

}  // namespace

TEST_CASE("ddp-env refuses every bad environment") {
  const std::vector<BadEnvironment> all = all_environments();
  REQUIRE(all.size() >= 500);
  check_all_refused(kDdpEnv, all);
}

TEST_CASE("the stages refuse bad environments before they open a socket") {
  const std::vector<BadEnvironment> all = all_environments();
  const std::vector<BadEnvironment> chosen = every_nth(all, 5);
  REQUIRE(chosen.size() >= 150);
  check_all_refused(kStage04, chosen);
  check_all_refused(kStage05, every_nth(all, 50));
  check_all_refused(kStage03, every_nth(all, 51));
}

TEST_CASE("a good environment does come to the socket, and the limit does see it") {
  const Variables good = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  CHECK(start(kDdpEnv, good)->wait().exit_code == 0);
  CHECK(start(kStage04, good)->wait().signal == SIGSYS);
  CHECK(start(kStage05, good)->wait().signal == SIGSYS);
}

TEST_CASE("a stage in a batch script that no srun has started says so, and trains") {
  const std::string note =
      ": note: SLURM_NTASKS is 4, but this process is in no step of the job and trains alone; "
      "start me with srun\n";
  const Variables batch = {{"SLURM_JOB_ID", "5"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "2"}};
  const ddp::ScratchFolder folder("ddp-batch");
  RunOptions options;
  options.cwd = folder.path();
  options.clear_environment = true;
  for (const std::string program : {"04_ddp_launcher", "05_multinode", "01_single_gpu"}) {
    const bool wants_launcher = program != "01_single_gpu";
    for (const Variables& variables : {batch, with(batch, {{"SLURM_NTASKS", "1"}})}) {
      options.environment = {variables.begin(), variables.end()};
      if (variables.at("SLURM_NTASKS") == "1") {
        options.environment["SLURM_NNODES"] = "1";
      }
      const RunResult result = run_program({kBin + program, "1", "1", "--quiet"}, options);
      INFO(program << ": " << result.err);
      CHECK(result.exit_code == 0);
      const bool told = wants_launcher && variables == batch;
      CHECK(result.err == (told ? program + note : ""));
    }
  }
}
