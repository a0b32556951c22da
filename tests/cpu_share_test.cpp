// Number of threads of a rank.
#include "common/launch/hardware.hpp"

#include "tests/catch.hpp"

namespace {

ddp::LaunchEnvironment local(int size, const std::string& launcher = "spawn") {
  ddp::LaunchEnvironment environment;
  environment.launcher = launcher;
  environment.local_world_size = size;
  return environment;
}

}  // namespace

TEST_CASE("ranks divide the cores of their node") {
  CHECK(ddp::share_of_cores(7, 16, local(1)) == 7);
  CHECK(ddp::share_of_cores(7, 16, local(2)) == 3);
  CHECK(ddp::share_of_cores(2, 2, local(20)) == 1);
  // Open MPI and Slurm may have bound the rank, or not.
  for (const char* const launcher : {"openmpi", "slurm"}) {
    CHECK(ddp::share_of_cores(2, 8, local(4, launcher)) == 2);
    CHECK(ddp::share_of_cores(8, 8, local(4, launcher)) == 2);
  }
  CHECK(ddp::share_of_cores(2, 8, local(2, "torchrun")) == 1);
}

TEST_CASE("--threads is taken as it is, and auto is the share") {
  ddp::Options options;
  CHECK(ddp::resolve_threads(options, local(1)) == 1);
  options.threads = 7;
  CHECK(ddp::resolve_threads(options, local(1)) == 7);
  options.threads = ddp::kAutomaticThreads;
  CHECK(ddp::resolve_threads(options, local(1)) == ddp::count_cores());
  options.nprocs = 1 << 20;  // replicas of stage 02
  CHECK(ddp::resolve_threads(options, local(1)) == 1);
}
