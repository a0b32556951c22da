// The MPI backend: real ranks under mpirun.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <regex>
#include <thread>

#include "common/backends/backend.hpp"
#include "common/base/scratch_folder.hpp"
#include "common/base/watchdog.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::contains;
using ddp::test::RunOptions;
using ddp::test::RunResult;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";

/// Where programs run, and what Open MPI keeps of a session until it is over.
const std::string& folder() {
  static const ddp::ScratchFolder scratch("ddp-mpi");
  return scratch.path();
}

RunResult run(const std::vector<std::string>& argv) {
  RunOptions options;
  options.cwd = folder();
  options.timeout_seconds = 300;
  options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                         {"TMPDIR", folder()}};
  for (const char* const name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"}) {
    options.environment[name] = std::nullopt;
  }
  return ddp::test::run_program(argv, options);
}

RunResult mpirun(int world_size, const std::vector<std::string>& program) {
  std::vector<std::string> argv = {"mpirun", "--oversubscribe", "-np", std::to_string(world_size)};
  argv.insert(argv.end(), program.begin(), program.end());
  return run(argv);
}

/// Whether a program ended with code 2 and one line on stderr in which `part` stands.
bool refused(const RunResult& result, const std::string& part) {
  return result.exit_code == 2 && contains(result.err, part) &&
         std::count(result.err.begin(), result.err.end(), '\n') == 1;
}

std::string problem(const std::string& launcher, int rank, int world_size,
                    const std::map<std::string, std::string>& variables) {
  ddp::LaunchEnvironment environment;
  environment.launcher = launcher;
  environment.rank = rank;
  environment.world_size = world_size;
  return ddp::mpi_launch_problem(environment, [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

struct Last {
  std::string moved;
  std::string digest;
};

/// @return what the last line of a successful run says
Last last_line(const RunResult& result) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  std::smatch match;
  REQUIRE(
      std::regex_search(result.out, match, std::regex(R"(moved (\S+) .*digest ([0-9a-f]{16}) )")));
  return {match[1], match[2]};
}

}  // namespace

TEST_CASE("a call that makes progress is not late, one that does not is") {
  using std::chrono::milliseconds;
  std::atomic<int> late = 0;
  ddp::Watchdog watchdog(
      milliseconds(500), milliseconds(1000), [] {}, [&](uint64_t) { ++late; });
  const ddp::Watchdog::Watch watch(watchdog);
  for (int piece = 0; piece < 50; ++piece) {
    std::this_thread::sleep_for(milliseconds(50));
    watchdog.progress();
  }
  CHECK(late == 0);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (late == 0 && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(milliseconds(50));
  }
  CHECK(late == 1);
}

TEST_CASE("which launches are an MPI world") {
  const std::map<std::string, std::string> one_of_two = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                         {"OMPI_COMM_WORLD_SIZE", "2"}};
  CHECK(problem("openmpi", 1, 2, one_of_two).empty());
  CHECK(problem("environment", 1, 2, one_of_two).empty());
  CHECK(problem("slurm", 1, 2, {{"PMIX_RANK", "1"}}).empty());
  CHECK(problem("none", 0, 1, {}).empty());
  CHECK(contains(problem("spawn", 1, 2, {}), "spawn started the 2 ranks, expected mpirun"));
  CHECK(contains(problem("torchrun", 0, 3, {}), "mpirun -n 3 build/bin/04_ddp_launcher"));
  CHECK(contains(problem("slurm", 1, 2, {{"PMIX_RANK", "0"}}), "slurm started the 2 ranks"));
  CHECK(contains(
      problem("spawn", 1, 2, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
      "spawn started rank 1 of 2 inside rank 0 of 1 of mpirun"));
  CHECK_FALSE(problem("spawn", 0, 2, {{"OMPI_COMM_WORLD_RANK", "0"}}).empty());
}

TEST_CASE("every collective of every type is right at every world size") {
  for (const int world_size : {1, 2, 3, 4, 8}) {
    const RunResult result = mpirun(world_size, {DDP_MPI_RANKS, "collectives"});
    INFO("world size " << world_size << ":\n" << result.out << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    std::smatch match;
    REQUIRE(std::regex_search(result.out, match, std::regex(R"((\d+) results are right)")));
    CHECK(std::stoi(match[1]) >= 200 * world_size);
  }
}

TEST_CASE("stages end on stage 01's weights, at world size 2 with the bits of shm", "[stage]") {
  const auto command = [&](const std::string& program, const std::string& backend) {
    return std::vector<std::string>{kBin + program, "2",      "2",       "--global-batch", "48",
                                    "--dataset",    "digits", "--quiet", "--backend",      backend};
  };
  const double moved = std::stod(last_line(run(command("01_single_gpu", "auto"))).moved);
  const auto agrees = [&](const Last& last) {
    return std::abs(std::stod(last.moved) - moved) <= 1e-4 * moved;
  };
  for (const int world_size : {1, 2, 3, 4, 8}) {
    INFO("world size " << world_size);
    const Last last = last_line(mpirun(world_size, command("05_multinode", "mpi")));
    CHECK(agrees(last));
    CHECK(last_line(mpirun(world_size, command("05_multinode", "mpi"))).digest == last.digest);
    if (world_size <= 2) {
      CHECK(last_line(mpirun(world_size, command("05_multinode", "shm"))).digest == last.digest);
      CHECK(last_line(mpirun(world_size, command("04_ddp_launcher", "mpi"))).digest == last.digest);
    }
  }
}

TEST_CASE("alone, one rank is a world", "[stage]") {
  last_line(run({kBin + "04_ddp_launcher", "1", "1", "--device", "cpu", "--backend", "mpi"}));
}

TEST_CASE("ranks that mpirun did not start are refused in one line", "[stage]") {
  const RunResult result = run(
      {kBin + "03_ddp_spawn", "1", "1", "--nprocs", "2", "--device", "cpu", "--backend", "mpi"});
  INFO(result.err);
  CHECK(refused(result, "--backend mpi: spawn started the 2 ranks, expected mpirun"));
}

TEST_CASE("a build without MPI says so", "[stage]") {
  // Programs look for modules beside their own folder.
  const std::string program = folder() + "/bin/04_ddp_launcher";
  std::filesystem::create_directory(folder() + "/bin");
  std::filesystem::copy_file(kBin + "04_ddp_launcher", program);
  const RunResult result = run({program, "1", "1", "--device", "cpu", "--backend", "mpi"});
  INFO(result.err);
  CHECK(refused(result, "--backend mpi: this build has no lib/libddp_mpi.so, expected"));
}

TEST_CASE("a rank that hangs is named, and the job ends at the timeout") {
  const RunResult result = mpirun(3, {DDP_MPI_RANKS, "hang", "5"});
  INFO(result.err);
  CHECK(result.exit_code == 1);
  CHECK(contains(result.err,
                 "mpi_ranks: error: [rank 0] --backend mpi: all_reduce sum of 784 float32: "
                 "rank 2 did not arrive within 5 s, expected all 3 ranks"));
}

TEST_CASE("two collectives may be further apart than the timeout") {
  const RunResult result = mpirun(2, {DDP_MPI_RANKS, "pause", "3"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
}

TEST_CASE("a collective whose pieces arrive may take longer than the timeout") {
  // Eight pieces. A rank gives up 1.5 s after the timeout, if no piece has come by then.
  const RunResult result = mpirun(2, {"env", std::string("LD_PRELOAD=") + DDP_SLOW_MPI,
                                      "DDP_SLOW_MPI_SECONDS=0.8", DDP_MPI_RANKS, "pieces", "3"});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(result.seconds > 8 * 0.8);
}

TEST_CASE("a rank that is killed, leaves or calls something else ends the others") {
  for (const auto& [what, said] :
       std::map<std::string, std::string>{{"die", "signal 9"},
                                          {"leave", "error: [rank 2] had enough"},
                                          {"differ", "--backend mpi: "}}) {
    const RunResult result = mpirun(3, {DDP_MPI_RANKS, what, what == "differ" ? "5" : "600"});
    INFO(what << ": " << result.err);
    CHECK(result.exit_code != 0);
    CHECK_FALSE(result.timed_out);
    CHECK(contains(result.err, said));
  }
}
