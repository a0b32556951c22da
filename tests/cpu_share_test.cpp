// Which cores and how many threads are a rank's, computed and as stages say it.
#include "common/launch/cpu_share.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

using ddp::LaunchEnvironment;
using ddp::share_of_cores;
using Cores = std::vector<int>;

namespace {

LaunchEnvironment local(int rank, int size, const std::string& launcher = "spawn") {
  LaunchEnvironment environment;
  environment.launcher = launcher;
  environment.local_rank = rank;
  environment.local_world_size = size;
  return environment;
}

std::string threads_on(size_t threads, const Cores& cores) {
  return std::to_string(threads) + (threads == 1 ? " thread" : " threads") + " on cores " +
         ddp::format_cores(cores);
}

/// What the ranks say on stderr, in their order.
std::vector<std::string> notes(const std::string& stage, const std::string& options) {
  const ddp::ScratchFolder folder("ddp-cpu-share");
  ddp::test::RunOptions where;
  where.cwd = folder.path();
  std::vector<std::string> argv =
      ddp::test::words("1 1 --verbose --device cpu --dataset-size 64 " + options);
  argv.insert(argv.begin(), std::string(DDP_BIN_DIR) + "/" + stage);
  const ddp::test::RunResult result = ddp::test::run_program(argv, where);
  CHECK(result.exit_code == 0);
  std::vector<std::string> lines;
  std::istringstream text(result.err);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
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
  using Notes = std::vector<std::string>;
  const Cores all = ddp::allowed_cores();
  CHECK(notes("01_single_gpu", "") == Notes{"01_single_gpu: [rank 0] " + threads_on(1, all)});
  CHECK(notes("01_single_gpu", "--threads auto") ==
        Notes{"01_single_gpu: [rank 0] " + threads_on(all.size(), all)});
  const Cores first = share_of_cores(all, 1 << 20, local(0, 2));
  const Cores second = share_of_cores(all, 1 << 20, local(1, 2));
  CHECK(notes("03_ddp_spawn", "--nprocs 2 --bind cores --threads auto") ==
        Notes{"03_ddp_spawn: [rank 0] " + threads_on(first.size(), first),
              "03_ddp_spawn: [rank 1] " + threads_on(second.size(), second)});
}
