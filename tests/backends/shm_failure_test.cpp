// Ranks over shared memory that disagree, stop, leave or are killed. Ranks are processes here.
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "common/backends/shm/shm_collectives.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/backends/shm_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using ddp::DType;
using ddp::ReduceOp;
using ddp::shm::Collectives;

/// Timeout longer than any test: if a rank ends earlier, it has noticed the fault.
constexpr std::chrono::minutes kLong{10};

void all_reduce(Collectives& communicator, size_t count, DType dtype = DType::kFloat32,
                ReduceOp op = ReduceOp::kSum) {
  std::vector<double> data(count);
  communicator.all_reduce(data.data(), count, dtype, op);
}

/// Runs `body` on connected ranks, as processes. A rank that succeeds says "done".
std::vector<ProcessOutcome> run_connected(
    int world_size, const std::function<void(Collectives& communicator)>& body,
    std::chrono::seconds timeout = kLong) {
  RankProcesses ranks(world_size, [&](int rank, RankBoard& board) {
    body(*Collectives::connect(rank, world_size, timeout, board.exchange(rank)));
    return std::string("done");
  });
  return ranks.wait();
}

/// All-reduces without end: small ones, large ones in private memory, and large ones in place.
std::string reduce_for_ever(int rank, int world_size, RankBoard& board) {
  const auto communicator = Collectives::connect(rank, world_size, kLong, board.exchange(rank));
  const auto region = communicator->allocate(1 << 20);
  for (bool is_first = true;; is_first = false) {
    all_reduce(*communicator, 100);
    all_reduce(*communicator, 100000);
    communicator->all_reduce(region.get(), 1 << 18, DType::kFloat32, ReduceOp::kAverage);
    board.at_work += is_first ? 1 : 0;
  }
}

/// True if a rank ended with `code` and one line with `part`.
bool failed_with(const ProcessOutcome& outcome, const std::string& part, int code = 1) {
  return outcome.status == code << 8 && contains(outcome.text, part) &&
         !contains(outcome.text, "\n");
}

}  // namespace

TEST_CASE("calls that differ are refused by both ranks, with both calls") {
  using Body = std::function<void(Collectives&)>;
  const auto reduce = [](size_t count, DType dtype, ReduceOp op) {
    return [=](Collectives& communicator) { all_reduce(communicator, count, dtype, op); };
  };
  const auto broadcast_from = [](int root) {
    return [root](Collectives& communicator) {
      std::vector<std::byte> data(100);
      communicator.broadcast(data.data(), 100, root);
    };
  };
  const Body sum = reduce(100, DType::kFloat32, ReduceOp::kSum);
  struct Case {
    Body first;
    Body second;
    std::string text;
  };
  const std::vector<Case> cases = {
      {sum, reduce(50, DType::kFloat32, ReduceOp::kSum),
       "rank 0 calls all_reduce sum of 100 float32, rank 1 calls all_reduce sum of 50 float32"},
      {sum, reduce(100, DType::kInt64, ReduceOp::kSum), "rank 1 calls all_reduce sum of 100 int64"},
      {sum, reduce(100, DType::kFloat32, ReduceOp::kAverage),
       "rank 1 calls all_reduce average of 100 float32"},
      {reduce(100, DType::kFloat64, ReduceOp::kSum), broadcast_from(1),
       "rank 1 calls broadcast from rank 1 of 100 bytes"},
      {broadcast_from(0), broadcast_from(1),
       "rank 0 calls broadcast from rank 0 of 100 bytes, rank 1 calls broadcast from rank 1"},
      {[](Collectives& communicator) { communicator.barrier(); },
       reduce(1, DType::kInt64, ReduceOp::kSum), "rank 0 calls barrier"},
      {[](Collectives& communicator) { communicator.barrier(); },
       [](Collectives& communicator) { communicator.broadcast(nullptr, 0, 0); },
       "rank 1 calls broadcast from rank 0 of 0 "},
  };
  for (const Case& c : cases) {
    for (const ProcessOutcome& outcome : run_connected(2, [&](Collectives& communicator) {
           communicator.barrier();
           (communicator.rank() == 0 ? c.first : c.second)(communicator);
         })) {
      INFO(outcome.text);
      CHECK(failed_with(outcome, c.text));
      CHECK(contains(outcome.text, ", expected the same on every rank"));
    }
  }
}

TEST_CASE("a rank that leaves ends the others, and every later call repeats the reason") {
  for (const bool tries_again : {false, true}) {
    const std::vector<ProcessOutcome> outcomes = run_connected(2, [&](Collectives& communicator) {
      const auto call = [&] { all_reduce(communicator, 3, DType::kFloat64); };
      if (communicator.rank() == 0) {
        if (tries_again) {
          message_of<ddp::Error>(call);
        }
        call();
      }
    });
    INFO(outcomes[0].text);
    CHECK(failed_with(outcomes[0], "rank 1 (pid"));
    CHECK(contains(outcomes[0].text, ") left during all_reduce sum of 3 float64"));
    CHECK(outcomes[1].text == "done");
  }
}

TEST_CASE("every call has the whole time limit") {
  const auto waits_twice = [](Collectives& communicator) {
    for (int call = 0; call < 2; ++call) {
      sleep(communicator.rank() == 1 ? 3 : 0);
      communicator.barrier();
    }
  };
  CHECK(run_connected(2, waits_twice, std::chrono::seconds(5))[0].text == "done");
}

TEST_CASE("kill -9 of a rank ends the others, who name it", "[kill]") {
  std::mt19937 random(7);
  for (int i = 0; i < 30; ++i) {
    const int world_size = 2 + i % 3;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(world_size));
    RankProcesses ranks(world_size, [world_size](int rank, RankBoard& board) {
      return reduce_for_ever(rank, world_size, board);
    });
    ranks.await_work();
    usleep(static_cast<useconds_t>(random() % 5000));
    const std::string died =
        fmt::format("rank {} (pid {}) died during all_reduce", victim, ranks.pid(victim));
    kill(ranks.pid(victim), SIGKILL);
    const std::vector<ProcessOutcome> outcomes = ranks.wait();
    for (int rank = 0; rank < world_size; ++rank) {
      const ProcessOutcome& outcome = outcomes[static_cast<size_t>(rank)];
      INFO("kill " << i + 1 << ", rank " << rank << ": " << outcome.text);
      CHECK((rank == victim ? WIFSIGNALED(outcome.status) : failed_with(outcome, died)));
    }
  }
}

TEST_CASE("ranks that do not see rank 0's process cannot share memory, and both say why") {
  RankProcesses ranks(2, [](int rank, RankBoard& board) {
    // As in another pid namespace, in which rank 0's pid is another process.
    const auto elsewhere = [rank, exchange = board.exchange(rank)](const std::string& mine) {
      std::vector<std::string> texts = exchange(mine);
      const size_t blank = texts[0].find(' ');
      if (rank == 1 && std::isdigit(texts[0][0]) != 0 && blank != std::string::npos) {
        texts[0] = "1" + texts[0].substr(blank);
      }
      return texts;
    };
    Collectives::connect(rank, 2, kLong, elsewhere);
    return std::string("connected");
  });
  for (const ProcessOutcome& outcome : ranks.wait()) {
    INFO(outcome.text);
    CHECK(failed_with(outcome, "rank 1 ", 2));
    CHECK(contains(outcome.text, "/proc/1/fd/"));
  }
}

TEST_CASE("more ranks than there is room for are refused") {
  for (const ProcessOutcome& outcome : run_connected(65, [](Collectives&) {})) {
    CHECK(outcome.text == "world size is 65, expected at most 64");
  }
}

TEST_CASE("64 ranks on however few processors") {
  for (const ProcessOutcome& outcome : run_connected(64, [](Collectives& communicator) {
         for (const size_t count : {1U, 128U, 129U, 100000U}) {
           std::vector<int64_t> data(count, communicator.rank());
           communicator.all_reduce(data.data(), count, DType::kInt64, ReduceOp::kSum);
           if (data[0] != 64 * 63 / 2 || data[count - 1] != 64 * 63 / 2) {
             throw std::runtime_error("wrong at " + std::to_string(count));
           }
         }
       })) {
    CHECK(outcome.text == "done");
  }
}
