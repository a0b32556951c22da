// One rank of an MPI job, for mpi_backend_test: mpi_ranks WHAT [TIMEOUT].

#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>

#include "common/base/exit_codes.hpp"
#include "common/launch/run_main.hpp"
#include "common/parallel/process_group.hpp"
#include "tests/support/collective_checks.hpp"

namespace {

/// Longer than any test waits.
void sleep_long() {
  std::this_thread::sleep_for(std::chrono::minutes(10));
}

torch::Tensor wide_sum(const ddp::ProcessGroup& group, int64_t count) {
  torch::Tensor tensor = torch::ones({count});
  group.all_reduce(tensor);
  return tensor;
}

/// The last rank does something else than the others, in the middle of the job.
void misbehave(const std::string& what, const ddp::ProcessGroup& group) {
  const bool culprit = group.rank() == group.world_size() - 1;
  wide_sum(group, 100);
  if (culprit && what == "hang") {
    sleep_long();
  } else if (culprit && what == "die") {
    raise(SIGKILL);
  } else if (culprit && what == "leave") {
    throw ddp::Error(ddp::ExitCode::kTrainingFailed, "had enough");
  } else if (culprit && what == "differ") {
    group.c10d_group()->getDefaultBackend()->barrier()->wait();
    group.c10d_group()->getDefaultBackend()->barrier()->wait();
    sleep_long();
  }
  wide_sum(group, 784);
  wide_sum(group, 784);
}

}  // namespace

int main(int argc, char** argv) {
  return ddp::internal::guarded(argc, argv, [&](std::string& who) {
    const std::string what = argc > 1 ? argv[1] : "collectives";
    ddp::Options options;
    options.program = "mpi_ranks";
    options.backend = "mpi";
    options.timeout_seconds = argc > 2 ? std::stod(argv[2]) : 60;
    const ddp::LaunchEnvironment environment = ddp::read_launch_environment(options);
    who = "[rank " + std::to_string(environment.rank) + "] ";
    at::set_num_threads(1);
    ddp::ProcessGroup group = ddp::create_process_group(options, environment, torch::kCPU);
    if (what == "collectives") {
      const int count = ddp::test::check_collectives(*group.c10d_group()->getDefaultBackend());
      const torch::Tensor counts = group.all_gather(torch::tensor({count}));
      if (group.rank() == 0) {
        std::cout << counts.sum().item<int64_t>() << " results are right\n";
      }
    } else if (what == "pause") {  // all alike, longer than the timeout; then rank 0 has to wait
      wide_sum(group, 100);
      std::this_thread::sleep_for(
          std::chrono::duration<double>(options.timeout_seconds + 1 + group.rank()));
      TORCH_CHECK(wide_sum(group, 784)[783].item<int>() == group.world_size());
    } else if (what == "pieces") {  // of 16 Mi elements: what MPI is given at a time
      constexpr int64_t kCount = 8 * (int64_t{1} << 24);
      const torch::Tensor tensor = torch::ones({kCount}, torch::kUInt8);
      group.all_reduce(tensor);
      TORCH_CHECK(torch::all(tensor == group.world_size()).item<bool>());
    } else {
      misbehave(what, group);
    }
    ddp::destroy_process_group(group);
    return 0;
  });
}
