// When a step's CUDA Graphs are captured, replayed, counted, freed; on a stream that takes notes.
#include "common/fused/graph_cache.hpp"

#include <torch/types.h>

#include "tests/catch.hpp"
#include "tests/support/threads_as_ranks.hpp"

namespace {

using ddp::CommunicationWait;
using ddp::ProcessGroup;
using ddp::fused::GraphCache;

struct Notes {
  int runs = 0;
  int captures = 0;
  int replays = 0;
  int graphs = 0;  ///< that are there now
};

class NotedGraph : public ddp::CapturedWork {
 public:
  explicit NotedGraph(Notes& notes) : notes_(notes) { ++notes_.graphs; }
  ~NotedGraph() override { --notes_.graphs; }
  void replay() override { ++notes_.replays; }

 private:
  Notes& notes_;
};

class NotedStream : public ddp::GraphStream {
 public:
  explicit NotedStream(Notes& notes) : notes_(notes) {}
  void run(c10::function_ref<void()> work) override {
    ++notes_.runs;
    work();
  }
  std::unique_ptr<ddp::CapturedWork> capture(c10::function_ref<void()> work) override {
    ++notes_.captures;
    work();
    return std::make_unique<NotedGraph>(notes_);
  }

 private:
  Notes& notes_;
};

constexpr int kUncaptured = 3;

}  // namespace

TEST_CASE("each kind of step runs a few times, is captured once, and replayed from then on") {
  Notes notes;
  GraphCache cache(std::make_unique<NotedStream>(notes));
  int calls = 0;
  for (int step = 1; step <= 10; ++step) {
    for (const size_t kind : {0U, 3U}) {
      cache.run(kind, 0.1, nullptr, [&] { ++calls; });
    }
  }
  CHECK(notes.runs == 2 * kUncaptured);
  CHECK(notes.captures == 2);
  CHECK(notes.replays == 2 * (10 - kUncaptured));
  CHECK(calls == notes.runs + notes.captures);
  CHECK(notes.graphs == 2);
}

TEST_CASE("another learning rate is another graph; what was released is captured again") {
  Notes notes;
  {
    GraphCache cache(std::make_unique<NotedStream>(notes));
    const auto step = [&](double learning_rate) { cache.run(1, learning_rate, nullptr, [] {}); };
    for (int i = 0; i < kUncaptured + 1; ++i) {
      step(0.1);
    }
    CHECK(notes.captures == 1);
    step(0.05);
    step(0.05);
    CHECK(notes.runs == kUncaptured);
    CHECK(notes.captures == 2);
    CHECK(notes.graphs == 1);
    cache.release();
    CHECK(notes.graphs == 0);
    step(0.05);
    CHECK(notes.captures == 3);
  }
  CHECK(notes.graphs == 0);
}

TEST_CASE("a replay counts what the captured step has sent") {
  ddp::test::run_ranks(2, [](ProcessGroup& process_group) {
    process_group.enable_wait_timer();
    Notes notes;
    GraphCache cache(std::make_unique<NotedStream>(notes));
    std::vector<ddp::DividedTensor> weights{ddp::divide(torch::zeros({64}), 2)};
    for (int step = 0; step < kUncaptured + 3; ++step) {
      cache.run(1, 0.1, &process_group, [&] {
        process_group.all_reduce(torch::ones({10}));
        process_group.gather_parts(weights);
      });
      const CommunicationWait wait = process_group.take_wait();
      TORCH_CHECK(wait.all_reduce_bytes.size() == 1 && wait.all_reduce_bytes[0] == 40);
      TORCH_CHECK(wait.gather_bytes == 256, "got ", wait.gather_bytes);
      TORCH_CHECK(wait.backward.device.empty() && wait.gather.device.empty());
    }
    TORCH_CHECK(notes.replays == 3);
  });
}

TEST_CASE("graphs are freed before the connections they use") {
  ddp::test::run_ranks(2, [](const ProcessGroup& world) {
    const auto store = c10::make_intrusive<c10d::PrefixStore>("own", world.store());
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank(), 2);
    ddp::attach_backend(
        *group, torch::kCPU,
        ddp::make_backend("gloo", store,
                          {world.rank(), 2, torch::kCPU, std::chrono::seconds(30), "127.0.0.1"}));
    ProcessGroup process_group(world.environment(), store, group, "gloo", torch::kCPU);
    Notes notes;
    GraphCache cache(std::make_unique<NotedStream>(notes));
    process_group.before_shutdown([&] { cache.release(); });
    for (int step = 0; step < kUncaptured + 1; ++step) {
      cache.run(0, 0.1, &process_group, [&] { process_group.all_reduce(torch::ones({10})); });
    }
    TORCH_CHECK(notes.graphs == 1);
    ddp::destroy_process_group(process_group);
    TORCH_CHECK(notes.graphs == 0);
  });
}
