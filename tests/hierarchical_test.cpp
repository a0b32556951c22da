// Two levels: ranks that pretend to be on several hosts.
#include "common/backends/hierarchical.hpp"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "tests/catch.hpp"
#include "tests/support/collective_checks.hpp"

namespace {

using ddp::test::contains;

/// Runs `body` on threads. @return what each rank threw, or nothing
std::vector<std::string> run_on_hosts(
    const std::vector<std::string>& host_of_rank,
    const std::function<void(int rank, c10d::Backend& backend)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  // c10d's flight recorder is one object for the process and not made for ranks that are threads.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto world_size = static_cast<int>(host_of_rank.size());
  const auto run = [&](int rank) -> std::string {
    try {
      at::init_num_threads();
      ddp::shm::HostIdentity identity = ddp::shm::read_host_identity();
      identity.host_name = host_of_rank[static_cast<size_t>(rank)];
      const ddp::BackendOptions options{rank, world_size, torch::kCPU, timeout, "127.0.0.1", 2};
      const ddp::Topology topology = ddp::find_topology(store, options, identity);
      const auto backend = ddp::make_hierarchical_backend(store, options, topology, identity);
      TORCH_CHECK(backend->getBackendName() == "hierarchical");
      body(rank, *backend);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, run, rank));
  }
  std::vector<std::string> messages;
  for (std::future<std::string>& rank : ranks) {
    messages.push_back(rank.get());
  }
  return messages;
}

ddp::shm::HostIdentity host(const std::string& name) {
  return {.host_name = name, .boot_id = "b", .shm_device = 1};
}

/// Of ranks whose calls must fail before others begin theirs.
class Failures {
 public:
  void expect_of(const std::function<void()>& call) {
    try {
      call();
    } catch (...) {
      ++count_;
      throw;
    }
  }
  void await(int count) const {
    while (count_ < count) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::atomic<int> count_{0};
};

const std::vector<std::string> kTwoByTwo = {"a", "a", "b", "b"};

}  // namespace

TEST_CASE("ranks are grouped by host, in whatever order they come") {
  const std::vector<ddp::shm::HostIdentity> round = {host("a"), host("b"), host("a"), host("b"),
                                                     host("a")};
  const ddp::Topology topology = ddp::group_by_host(round, 3);
  CHECK(topology.hosts == std::vector<std::vector<int>>{{0, 2, 4}, {1, 3}});
  CHECK(topology.host == 1);
  CHECK(topology.local_rank == 1);
  CHECK(topology.local_ranks() == std::vector<int>{1, 3});
  CHECK(ddp::has_two_levels(topology));
  CHECK_FALSE(ddp::has_two_levels(ddp::group_by_host({host("a"), host("a"), host("b")}, 0)));
  CHECK_FALSE(ddp::has_two_levels(ddp::group_by_host({host("a"), host("a")}, 0)));
}

TEST_CASE("every collective of every type is right, however the ranks are spread") {
  at::set_num_threads(1);
  const std::vector<std::vector<std::string>> spreads = {
      {"a"},           {"a", "a"}, {"a", "b"},
      {"a", "b", "a"}, kTwoByTwo,  {"a", "b", "b", "c", "a", "b", "b", "c"}};
  for (const std::vector<std::string>& spread : spreads) {
    const std::vector<std::string> messages =
        run_on_hosts(spread, [&](int, c10d::Backend& backend) {
          TORCH_CHECK(ddp::test::check_collectives(backend) >= 200);
          backend.shutdown();
        });
    CHECK(messages == std::vector<std::string>(spread.size()));
  }
}

TEST_CASE("what goes between hosts in several pieces arrives whole") {
  at::set_num_threads(1);
  constexpr int64_t kElements = 3 * (1 << 20) + 3;  // pieces of 4 MiB
  for (const std::vector<std::string>& spread :
       {kTwoByTwo, std::vector<std::string>{"a", "b", "c", "c"}}) {
    const std::vector<std::string> messages =
        run_on_hosts(spread, [&](int rank, c10d::Backend& backend) {
          const torch::Tensor numbers = torch::arange(kElements).remainder(1000).to(torch::kFloat);
          std::vector<torch::Tensor> tensors{numbers * (rank + 1)};
          backend.allreduce(tensors)->wait();
          TORCH_CHECK(torch::equal(tensors[0], numbers * 10));
          tensors[0] = rank == 3 ? numbers : torch::zeros({kElements});
          backend.broadcast(tensors, {.rootRank = 3})->wait();
          TORCH_CHECK(torch::equal(tensors[0], numbers));
          backend.shutdown();
        });
    CHECK(messages == std::vector<std::string>(spread.size()));
  }
}

TEST_CASE("a rank that hangs is named by its number in the job, and all hosts end") {
  Failures failures;
  const std::vector<std::string> messages = run_on_hosts(
      kTwoByTwo,
      [&](int rank, c10d::Backend& backend) {
        std::vector<torch::Tensor> tensors{torch::ones({100})};
        backend.allreduce(tensors)->wait();
        if (rank == 3) {
          failures.await(3);
        }
        failures.expect_of([&] { backend.allreduce(tensors)->wait(); });
      },
      std::chrono::seconds(3));
  INFO(messages[0] << '\n' << messages[1] << '\n' << messages[2]);
  CHECK(contains(messages[0], "all_reduce between the hosts"));
  CHECK(contains(messages[1], "rank 0 (pid "));
  CHECK(contains(messages[2], "rank 3 (pid "));
  CHECK(contains(messages[2], "did not arrive within 3 s"));
}

TEST_CASE("a broadcast that waits for another host: nobody blames the own leader for being late") {
  Failures failures;
  const std::vector<std::string> messages = run_on_hosts(
      kTwoByTwo,
      [&](int rank, c10d::Backend& backend) {
        std::vector<torch::Tensor> tensors{torch::ones({100})};
        if (rank >= 2) {
          failures.await(2);
        }
        failures.expect_of([&] { backend.broadcast(tensors)->wait(); });
      },
      std::chrono::seconds(3));
  INFO(messages[0] << '\n' << messages[1]);
  CHECK(contains(messages[0], "broadcast between the hosts"));
  CHECK(contains(messages[1], "rank 0 (pid "));
  CHECK_FALSE(contains(messages[1], "did not arrive"));
}

TEST_CASE("calls that differ within a host are refused with the ranks' numbers in the job") {
  const std::vector<std::string> messages = run_on_hosts(
      kTwoByTwo,
      [](int rank, c10d::Backend& backend) {
        std::vector<torch::Tensor> tensors{torch::ones({rank == 3 ? 10 : 20})};
        backend.allreduce(tensors)->wait();
      },
      std::chrono::seconds(3));
  INFO(messages[0] << '\n' << messages[2]);
  CHECK(contains(messages[2], "rank 2 calls all_reduce sum of 20 float32"));
  CHECK(contains(messages[2], "rank 3 calls all_reduce sum of 10 float32"));
  CHECK_FALSE(messages[0].empty());
}
