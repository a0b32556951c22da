// The MPI backend: real ranks under mpirun.
#include <filesystem>
#include <regex>

#include "common/backends/backend.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using ddp::test::contains;
using ddp::test::RunOptions;
using ddp::test::RunResult;

const std::string kBin = std::string(DDP_BIN_DIR) + "/";

/// Folder for programs, and for Open MPI's files of a session.
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

/// Message that refuses the launch, or nothing.
std::string problem(const std::string& launcher, int rank, int world_size,
                    const std::map<std::string, std::string>& variables) {
  ddp::LaunchEnvironment environment;
  environment.launcher = launcher;
  environment.rank = rank;
  environment.world_size = world_size;
  try {
    ddp::check_launch("mpi", environment, variables);
  } catch (const ddp::UsageError& error) {
    return error.what();
  }
  return "";
}

/// Digest of the weights that a successful run prints.
std::string digest(const RunResult& result) {
  INFO(result.out << result.err);
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  std::smatch match;
  REQUIRE(std::regex_search(result.out, match, std::regex("digest ([0-9a-f]{16}) ")));
  return match[1];
}

}  // namespace

TEST_CASE("which launches are an MPI world") {
  const std::map<std::string, std::string> one_of_two = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                         {"OMPI_COMM_WORLD_SIZE", "2"}};
  CHECK(problem("openmpi", 1, 2, one_of_two).empty());
  CHECK_FALSE(problem("spawn", 0, 2, one_of_two).empty());
  CHECK(problem("slurm", 1, 2, {{"PMIX_RANK", "1"}}).empty());
  CHECK(problem("none", 0, 1, {}).empty());
  CHECK(contains(problem("spawn", 1, 2, {}), "spawn started the 2 ranks, expected mpirun"));
  CHECK(contains(problem("torchrun", 0, 3, {}), "mpirun -n 3 build/bin/04_ddp_launcher"));
  CHECK(contains(problem("slurm", 1, 2, {{"PMIX_RANK", "0"}}), "slurm started the 2 ranks"));
  CHECK_FALSE(problem("spawn", 1, 2, {{"OMPI_COMM_WORLD_SIZE", "1"}}).empty());
}

TEST_CASE("every collective of every type is right at every world size") {
  for (const int world_size : {1, 2, 3}) {
    const RunResult result = mpirun(world_size, {DDP_MPI_RANKS, "collectives"});
    INFO("world size " << world_size << ":\n" << result.out << result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    std::smatch match;
    REQUIRE(std::regex_search(result.out, match, std::regex(R"((\d+) results are right)")));
    CHECK(std::stoi(match[1]) >= 150 * world_size);
  }
}

TEST_CASE("a rank that is killed or leaves ends the others") {
  for (const auto& [what, said] : std::map<std::string, std::string>{
           {"die", "signal 9"}, {"leave", "mpi_ranks: error: had enough"}}) {
    const RunResult result = mpirun(3, {DDP_MPI_RANKS, what});
    INFO(what << ": " << result.err);
    CHECK(result.exit_code != 0);
    CHECK_FALSE(result.timed_out);
    CHECK(contains(result.err, said));
  }
}

TEST_CASE("two ranks of a stage train to the bits of shm, in every run", "[stage]") {
  const auto train = [](const std::string& program, const std::string& backend) {
    return digest(mpirun(2, {kBin + program, "2", "2", "--global-batch", "48", "--dataset",
                             "digits", "--quiet", "--backend", backend}));
  };
  const std::string expected = train("05_multinode", "shm");
  CHECK(train("05_multinode", "mpi") == expected);
  CHECK(train("05_multinode", "mpi") == expected);
  CHECK(train("04_ddp_launcher", "mpi") == expected);
}

TEST_CASE("a build without MPI says so", "[stage]") {
  // Programs look for modules in lib beside their own folder.
  const std::string program = folder() + "/bin/04_ddp_launcher";
  std::filesystem::create_directory(folder() + "/bin");
  std::filesystem::copy_file(kBin + "04_ddp_launcher", program);
  const RunResult result = run({program, "1", "1", "--device", "cpu", "--backend", "mpi"});
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "--backend mpi: this build has no lib/libddp_mpi.so, expected"));
}
