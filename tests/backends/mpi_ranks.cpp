// A rank of an MPI job, for mpi_backend_test: mpi_ranks WHAT; mpi_ranks launch LAUNCHER RANK RANKS
// asks whether that would be one.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "common/backends/registry.hpp"
#include "tests/backends/backend_conformance.hpp"

namespace {

int number(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? 0 : std::atoi(value);
}

int run(const std::string& what) {
  at::set_num_threads(1);
  const int world_size = number("OMPI_COMM_WORLD_SIZE");
  const auto backend = ddp::make_backend("mpi", c10::make_intrusive<c10d::HashStore>(),
                                         {number("OMPI_COMM_WORLD_RANK"), world_size, torch::kCPU,
                                          std::chrono::seconds(30), "127.0.0.1"});
  int64_t results = 0;
  if (what == "collectives") {
    results = ddp::test::check_collectives(*backend);
  } else if (what == "die" && backend->getRank() == world_size - 1) {
    raise(SIGKILL);
  } else if (what == "leave" && backend->getRank() == world_size - 1) {
    throw std::runtime_error("had enough");
  }
  std::vector<torch::Tensor> sum{torch::tensor({results})};
  backend->allreduce(sum)->wait();
  if (backend->getRank() == 0) {
    std::cout << sum[0].item<int64_t>() << " results are right\n";
  }
  backend->shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 5) {
      ddp::LaunchEnvironment launch;
      launch.launcher = argv[2];
      launch.rank = std::atoi(argv[3]);
      launch.world_size = std::atoi(argv[4]);
      ddp::check_launch("mpi", launch);
      return 0;
    }
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "mpi_ranks: error: " << error.what() << "\n";
    return 1;
  }
}
