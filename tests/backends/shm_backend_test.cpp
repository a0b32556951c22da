// The shared-memory backend through c10d and the stages, and the ranks of mpi_backend_test.py.
#include <sys/resource.h>

#include <csignal>
#include <iostream>
#include <regex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "common/backends/registry.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "tests/backends/backend_conformance.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/ranks_by_hand.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

/// Runs `body` on ranks, as threads, connected by make_backend(name).
void run_backends(int world_size, const std::string& name,
                  const std::function<void(c10d::Backend& backend)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(world_size, [&](int rank) {
    const auto backend = ddp::make_backend(
        name, store,
        {rank, world_size, torch::kCPU, std::chrono::seconds(30), /*address=*/"127.0.0.1"});
    body(*backend);
    backend->barrier()->wait();
  });
}

bool mapped_as_shared(const torch::Tensor& tensor) {
  const auto at = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 && at >= begin && at < end) {
      return line.find("memfd:ddp-cpp") != std::string::npos;
    }
  }
  return false;
}

/// Backend in the summary of m.jsonl.
std::string backend_used(const RanksByHand& ranks) {
  const std::string text = ddp::read_text(ranks.folder.path() + "/m.jsonl");
  std::smatch match;
  std::regex_search(text, match, std::regex(R"re("backend":"(\w+)")re"));
  return match.empty() ? "none" : match[1].str();
}

}  // namespace

TEST_CASE("every collective of every type is right, over every backend of CPUs") {
  at::set_num_threads(1);
  const int world_size = GENERATE(1, 2, 3);
  for (const ddp::BackendTraits& row : ddp::kBackends) {
    INFO(row.name << ", world size " << world_size);
    if (row.on_cpu && !row.needs_mpirun) {  // see mpi_backend_test.py
      CHECK_NOTHROW(run_backends(world_size, row.name, [](c10d::Backend& backend) {
        TORCH_CHECK(check_collectives(backend) >= 150);
      }));
    }
  }
}

TEST_CASE("a row has everything that its name needs, and no name is taken for another") {
  const torch::Device gpu("cuda:0");
  CHECK(&ddp::traits_of("nccl2") == &ddp::traits_of("nccl"));
  CHECK(ddp::traits_of("shm2").name == std::string());
  std::string devices;
  for (const ddp::BackendTraits& row : ddp::kBackends) {
    devices +=
        fmt::format("{}{}{} ", row.name, row.on_cpu ? "/cpu" : "", row.on_cuda ? "/cuda" : "");
    INFO(row.name);
    CHECK(&ddp::traits_of(row.name) == &row);
    CHECK(message_of<ddp::UsageError>([&] {
            ddp::resolve_backend(row.name, torch::kCPU);
          }).empty() == row.on_cpu);
    CHECK(message_of<ddp::UsageError>([&] { ddp::resolve_backend(row.name, gpu); }).empty() ==
          row.on_cuda);
  }
  CHECK(devices == "nccl/cuda gloo/cpu/cuda mpi/cpu/cuda shm/cpu ");
  CHECK(ddp::resolve_backend("auto", gpu) == "nccl");
}

TEST_CASE("what it cannot do is refused in one line") {
  const auto backend =
      ddp::make_backend("shm", c10::make_intrusive<c10d::HashStore>(),
                        {0, 1, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"});
  const auto reduce = [&](const torch::Tensor& tensor,
                          c10d::ReduceOp op = c10d::ReduceOp::SUM) -> std::function<void()> {
    return [&backend, tensor, op] {
      std::vector<torch::Tensor> tensors{tensor};
      backend->allreduce(tensors, {.reduceOp = op});
    };
  };
  std::vector<torch::Tensor> none;
  std::vector<torch::Tensor> one{torch::ones({2})};
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {reduce(torch::ones({2}), c10d::ReduceOp::PRODUCT),
       "Expected all_reduce with SUM, AVG, MAX or MIN, got"},
      {reduce(torch::ones({2}, torch::kInt32), c10d::ReduceOp::AVG),
       "Expected all_reduce of floating-point numbers, got int"},
      {reduce(torch::ones({2}, torch::kComplexFloat), c10d::ReduceOp::MAX),
       "Expected all_reduce of real numbers, got c10::complex<float>"},
      {reduce(torch::ones({2}).to_sparse()),
       "Expected all_reduce of a dense tensor, got SparseCPUFloatType"},
      {[&] { backend->allreduce(none, {}); }, "Expected all_reduce of 1 tensor, got 0"},
      {[&] { backend->broadcast(one, {.rootRank = 3}); },
       "Expected broadcast from rank 0 to 0, got 3"},
      {[&] {
         backend->shutdown();
         backend->allreduce(one, {});
       },
       "Expected a call before the process group was destroyed, got one after"}};
  for (const auto& [call, expected] : cases) {
    std::string message;
    try {
      call();
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
    INFO(message);
    CHECK(contains(message, "backend shm: " + expected));
    CHECK_FALSE(contains(message, "\n"));
  }
}

TEST_CASE("memory for gradients is shared, unless the ranks' sizes differ") {
  run_backends(2, "shm", [](c10d::Backend& backend) {
    TORCH_CHECK(backend.supportsTensorAlloc(0));
    const torch::Tensor same = backend.allocateTensor(1000, torch::kFloat64);
    TORCH_CHECK(same.numel() == 1000 && same.dtype() == torch::kFloat64);
    TORCH_CHECK(mapped_as_shared(same));
    const torch::Tensor different =
        backend.allocateTensor(1000 + backend.getRank(), torch::kFloat32);
    TORCH_CHECK(different.numel() == 1000 + backend.getRank());
    TORCH_CHECK(!mapped_as_shared(different));
  });
}

TEST_CASE("auto is shared memory; where there is none, shm is an error and auto is Gloo") {
  const auto used_by_auto = [] {
    std::string name;
    run_backends(2, "auto", [&](c10d::Backend& backend) {
      if (backend.getRank() == 0) {
        name = backend.getBackendName();
      }
    });
    return name;
  };
  CHECK(used_by_auto() == "shm");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message =
      message_of<ddp::UsageError>([] { run_backends(2, "shm", [](c10d::Backend&) {}); });
  const std::string used = used_by_auto();
  setrlimit(RLIMIT_FSIZE, &before);
  CHECK(message ==
        "--backend shm: rank 0 cannot make 8 MiB of shared memory: ulimit -f allows files of 1 "
        "MiB; use --backend gloo");
  CHECK(used == "gloo");
}

TEST_CASE("a host of another name: shm is refused by both ranks, auto uses Gloo", "[stage]") {
  for (const std::string backend : {"shm", "auto"}) {
    RanksByHand ranks;
    std::ofstream(ranks.folder.path() + "/elsewhere") << "hostname elsewhere && exec \"$@\"";
    for (const int rank : {0, 1}) {
      ranks.start(rank,
                  std::string(rank == 1 ? "unshare --uts sh elsewhere " : "") +
                      DDP_BIN_DIR "/04_ddp_launcher 1 1 --metrics m.jsonl --backend " + backend,
                  "LOCAL_WORLD_SIZE=2");
    }
    for (const auto& rank : ranks.started) {
      const RunResult result = rank->wait();
      INFO(result.err);
      CHECK(result.exit_code == (backend == "shm" ? 2 : 0));
      CHECK(result.err.empty() == (backend == "auto"));
      if (backend == "shm") {
        CHECK(contains(result.err, "--backend shm: rank 1 is on elsewhere (boot id "));
        CHECK(contains(result.err, "expected all ranks on one host; use --backend gloo"));
      }
    }
    CHECK(backend_used(ranks) == (backend == "shm" ? "none" : "gloo"));
  }
}

TEST_CASE("a rank under mpirun, for mpi_backend_test.py", "[.][mpi]") {
  at::set_num_threads(1);
  const std::string what = std::getenv("WHAT");
  const int world_size = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  const auto backend =
      ddp::make_backend("mpi", c10::make_intrusive<c10d::HashStore>(),
                        {std::atoi(std::getenv("OMPI_COMM_WORLD_RANK")), world_size, torch::kCPU,
                         std::chrono::seconds(30), "127.0.0.1"});
  if (backend->getRank() == world_size - 1) {
    REQUIRE(what != "leave");
    if (what == "die") {
      raise(SIGKILL);
    }
  }
  const int results = what == "collectives" ? check_collectives(*backend) : 0;
  std::vector<torch::Tensor> sum{torch::tensor({results})};
  backend->allreduce(sum)->wait();
  if (backend->getRank() == 0) {
    std::cout << sum[0].item<int>() << " results are right\n";
  }
  backend->shutdown();
  SUCCEED();
}

TEST_CASE("a launch that may be an MPI world, for mpi_backend_test.py", "[.][mpi_launch]") {
  ddp::LaunchEnvironment launch;
  launch.launcher = std::getenv("LAUNCHER");
  launch.rank = std::atoi(std::getenv("LAUNCH_RANK"));
  launch.world_size = std::atoi(std::getenv("LAUNCH_RANKS"));
  std::cout << "refusal: " << message_of([&] { ddp::check_launch("mpi", launch); }) << "\n";
  SUCCEED();
}
