// LibTorch's Gloo as this library starts it, and waits that notice broken connections.
#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "common/backends/gloo.hpp"
#include "common/backends/registry.hpp"
#include "tests/catch.hpp"

TEST_CASE("a wait ends soon after the other rank has gone, long before the timeout") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends(2);
  std::vector<std::future<void>> starts;
  for (int rank = 0; rank < 2; ++rank) {
    starts.push_back(std::async(std::launch::async, [&, rank] {
      backends[static_cast<size_t>(rank)] = ddp::make_backend(
          "gloo", store, {rank, 2, torch::kCPU, std::chrono::minutes(10), "127.0.0.1"});
    }));
  }
  for (auto& start : starts) {
    start.get();
  }
  std::vector<torch::Tensor> tensors{torch::ones({1000})};
  const auto work = backends[0]->allreduce(tensors);
  std::future<void> waits = std::async(std::launch::async, [&] {
    ddp::wait_over_gloo(*backends[0], *work, std::chrono::minutes(10), [] { return false; });
  });
  CHECK(waits.wait_for(std::chrono::milliseconds(600)) == std::future_status::timeout);
  backends[1].reset();
  REQUIRE(waits.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK_THROWS(waits.get());
}
