// Exchange of texts between ranks that share only a store.
#include <chrono>
#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"

using std::chrono::milliseconds;

namespace {

ddp::BackendOptions rank_of_3(int rank, milliseconds timeout) {
  return {rank, 3, torch::kCPU, timeout, "127.0.0.1"};
}

}  // namespace

TEST_CASE("ranks that do not come are named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string lacks =
      "within 0.3 s the start of --backend shm lacks rank 1, 2 of world size 3";
  CHECK_THROWS_MATCHES(ddp::exchange_through(store, "shm", rank_of_3(0, milliseconds(300)))("here"),
                       ddp::TransientError,
                       Catch::Matchers::Message(lacks + ", expected all of them"));
}

TEST_CASE("the rank that serves the store goes last") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::future<void> first = std::async(std::launch::async, [&store] {
    ddp::let_others_read(*store, "settings", 0, 2, std::chrono::seconds(30));
  });
  CHECK(first.wait_for(milliseconds(50)) == std::future_status::timeout);
  ddp::let_others_read(*store, "settings", 1, 2, std::chrono::seconds(30));
  first.get();
  // A killed rank reads nothing.
  ddp::let_others_read(*store, "other", 0, 2, milliseconds(50));
}
