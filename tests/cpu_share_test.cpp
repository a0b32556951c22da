#include "common/launch/cpu_share.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using ddp::LaunchEnvironment;
using ddp::share_of_cores;
using ddp::test::RunResult;
namespace fs = std::filesystem;
using Cores = std::vector<int>;

namespace {

LaunchEnvironment local(int rank, int size, const std::string& launcher = "spawn") {
  LaunchEnvironment environment;
  environment.launcher = launcher;
  environment.local_rank = rank;
  environment.local_world_size = size;
  return environment;
}

/// The lines on stderr, in the order of the ranks.
std::vector<std::string> notes(const RunResult& result) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = 0; (end = result.err.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(result.err.substr(begin, end - begin));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

RunResult run_verbose(const std::string& stage, const std::vector<std::string>& more) {
  const fs::path folder =
      fs::temp_directory_path() / ("cpu_share_test-" + std::to_string(getpid()));
  fs::create_directories(folder);
  ddp::test::RunOptions options;
  options.cwd = folder;
  std::vector<std::string> argv = {std::string(DDP_BIN_DIR) + "/" + stage, "1", "1", "--verbose"};
  argv.insert(argv.end(), more.begin(), more.end());
  argv.insert(argv.end(), {"--device", "cpu", "--dataset-size", "64"});
  const RunResult result = ddp::test::run_program(argv, options);
  fs::remove_all(folder);
  CHECK(result.exit_code == 0);
  return result;
}

}  // namespace

TEST_CASE("ranks divide the cores of their node") {
  const Cores allowed = {0, 1, 2, 5, 6, 7, 9};
  CHECK(share_of_cores(allowed, 16, local(0, 1)) == allowed);
  CHECK(share_of_cores(allowed, 16, local(0, 2)) == Cores{0, 1, 2});
  CHECK(share_of_cores(allowed, 16, local(1, 2)) == Cores{5, 6, 7, 9});
  for (const int ranks : {1, 2, 3, 5, 7}) {
    Cores together;
    for (int rank = 0; rank < ranks; ++rank) {
      const Cores share = share_of_cores(allowed, 16, local(rank, ranks));
      CHECK_FALSE(share.empty());
      together.insert(together.end(), share.begin(), share.end());
    }
    CHECK(together == allowed);  // none twice, none left out
  }
  SECTION("more ranks than cores share them") {
    for (int rank = 0; rank < 20; ++rank) {
      CHECK(share_of_cores({4, 5}, 8, local(rank, 20)).size() == 1);
    }
    CHECK(share_of_cores({3}, 8, local(19, 20)) == Cores{3});
  }
  SECTION("Open MPI and Slurm have bound the rank already, or have not") {
    for (const char* const launcher : {"openmpi", "slurm"}) {
      CHECK(share_of_cores({4, 5}, 8, local(1, 4, launcher)) == Cores{4, 5});
      CHECK(share_of_cores({0, 1, 2, 3}, 4, local(1, 4, launcher)) == Cores{1});
    }
    CHECK(share_of_cores({4, 5}, 8, local(1, 2, "torchrun")) == Cores{5});
  }
}

TEST_CASE("cores as text") {
  CHECK(ddp::format_cores({0}) == "0");
  CHECK(ddp::format_cores({0, 1, 2, 3, 8}) == "0-3,8");
  CHECK(ddp::format_cores({1, 3, 4, 7, 8, 9}) == "1,3-4,7-9");
}

TEST_CASE("stages say how many threads they use on which cores, and do so") {
  const Cores allowed = ddp::allowed_cores();
  const std::string all = ddp::format_cores(allowed);
  const std::string auto_threads = std::to_string(allowed.size());
  SECTION("the default: one thread, not bound") {
    const RunResult result = run_verbose("01_single_gpu", {});
    REQUIRE(notes(result).size() == 1);
    CHECK(notes(result)[0] == "01_single_gpu: [rank 0] 1 thread on cores " + all);
  }
  SECTION("all cores of one process") {
    const RunResult result = run_verbose("01_single_gpu", {"--threads", "auto"});
    REQUIRE(notes(result).size() == 1);
    CHECK(notes(result)[0] == "01_single_gpu: [rank 0] " + auto_threads +
                                  (allowed.size() == 1 ? " thread" : " threads") + " on cores " +
                                  all);
  }
  SECTION("bound ranks") {
    const RunResult result =
        run_verbose("03_ddp_spawn", {"--nprocs", "2", "--bind", "cores", "--threads", "auto"});
    INFO(result.err);
    REQUIRE(notes(result).size() == 2);
    for (int rank = 0; rank < 2; ++rank) {
      const Cores share = share_of_cores(allowed, 1 << 20, local(rank, 2));
      CHECK(notes(result)[static_cast<size_t>(rank)] ==
            "03_ddp_spawn: [rank " + std::to_string(rank) + "] " + std::to_string(share.size()) +
                (share.size() == 1 ? " thread" : " threads") + " on cores " +
                ddp::format_cores(share));
    }
  }
}
