// What happens over shared memory when ranks disagree, stop, leave or are killed, and that nothing
// is left behind. Ranks are processes here.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sched.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "common/backends/shm/shm_communicator.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/shm_ranks.hpp"

namespace {

using ddp::shm::Communicator;
using ddp::shm::DType;
using ddp::shm::Exchange;
using ddp::shm::ReduceOp;
using ddp::shm::Segment;
using ddp::shm::Sharing;
using ddp::test::ProcessOutcome;
using ddp::test::RankProcesses;
using ddp::test::shared_memory_names;
using std::chrono::milliseconds;

Communicator::Settings settings(int rank, int world_size,
                                milliseconds timeout = milliseconds(60000)) {
  return {.rank = rank, .world_size = world_size, .timeout = timeout};
}

/// All-reduces without end: small ones, large ones in private memory, and large ones in place.
std::string reduce_for_ever(int rank, int world_size, const Exchange& exchange) {
  const auto communicator = Communicator::connect(settings(rank, world_size), exchange);
  const auto region = communicator->allocate(1 << 20);
  std::vector<float> small(100, 1.0F);
  std::vector<float> large(100000, 1.0F);
  for (;;) {
    communicator->all_reduce(small.data(), small.size(), DType::kFloat32, ReduceOp::kMax);
    communicator->all_reduce(large.data(), large.size(), DType::kFloat32, ReduceOp::kMax);
    communicator->all_reduce(region.get(), 1 << 18, DType::kFloat32, ReduceOp::kMax);
    RankProcesses::tick(rank);
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string died(int rank, pid_t pid) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) +
         ") died during all_reduce";
}

/// Kills a rank in the middle of its all-reduces. @return what was wrong with how the others ended
std::string kill_one(int world_size, std::mt19937& random) {
  RankProcesses ranks(world_size, [world_size](int rank, const Exchange& exchange) {
    return reduce_for_ever(rank, world_size, exchange);
  });
  if (!ranks.wait_for_ticks(1)) {
    return "the ranks did not start";
  }
  usleep(static_cast<useconds_t>(random() % 5000));
  const int victim = static_cast<int>(random() % static_cast<unsigned>(world_size));
  const std::string expected = died(victim, ranks.pid(victim));
  kill(ranks.pid(victim), SIGKILL);
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  for (int rank = 0; rank < world_size; ++rank) {
    const ProcessOutcome& outcome = outcomes[static_cast<size_t>(rank)];
    if (rank == victim) {
      if (!WIFSIGNALED(outcome.status)) {
        return "the victim ended by itself: " + outcome.text;
      }
    } else if (!contains(outcome.text, expected) || contains(outcome.text, "\n") ||
               outcome.status != 1 << 8 || outcome.seconds > 5) {
      return "expected \"" + expected + "\" from rank " + std::to_string(rank) + ", got \"" +
             outcome.text + "\", status " + std::to_string(outcome.status) + " after " +
             std::to_string(outcome.seconds) + " s";
    }
  }
  return "";
}

void kill_often(int times) {
  const std::set<std::string> names = shared_memory_names();
  std::mt19937 random(7);
  for (int i = 0; i < times; ++i) {
    INFO("kill " << i + 1 << " of " << times);
    CHECK(kill_one(2 + i % 3, random) == "");
  }
  CHECK(shared_memory_names() == names);
}

/// Runs two ranks of which each makes its own call after one in common.
std::vector<ProcessOutcome> run_two(const std::function<void(Communicator&)>& first,
                                    const std::function<void(Communicator&)>& second,
                                    milliseconds timeout = milliseconds(60000)) {
  RankProcesses ranks(2, [&](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 2, timeout), exchange);
    communicator->barrier();
    (rank == 0 ? first : second)(*communicator);
    return std::string("done");
  });
  return ranks.wait();
}

void all_reduce(Communicator& communicator, size_t count, DType dtype, ReduceOp op) {
  std::vector<double> data(count);
  communicator.all_reduce(data.data(), count, dtype, op);
}

}  // namespace

TEST_CASE("calls that differ are refused by both ranks, with both calls") {
  const auto reduce = [](size_t count, DType dtype, ReduceOp op) {
    return [=](Communicator& communicator) { all_reduce(communicator, count, dtype, op); };
  };
  struct Case {
    std::function<void(Communicator&)> first;
    std::function<void(Communicator&)> second;
    std::string text;
  };
  std::vector<double> data(1000);
  const std::vector<Case> cases = {
      {reduce(100, DType::kFloat32, ReduceOp::kSum), reduce(50, DType::kFloat32, ReduceOp::kSum),
       "rank 0 calls all_reduce sum of 100 float32 as collective 3, "
       "rank 1 calls all_reduce sum of 50 float32 as collective 3"},
      {reduce(100000, DType::kFloat32, ReduceOp::kSum),
       reduce(100, DType::kFloat32, ReduceOp::kSum),
       "sum of 100000 float32 as collective 3, rank 1"},
      {reduce(100, DType::kFloat32, ReduceOp::kSum), reduce(100, DType::kInt32, ReduceOp::kSum),
       "rank 1 calls all_reduce sum of 100 int32"},
      {reduce(100, DType::kFloat32, ReduceOp::kSum), reduce(100, DType::kFloat32, ReduceOp::kMax),
       "rank 1 calls all_reduce max of 100 float32"},
      {reduce(100, DType::kFloat64, ReduceOp::kSum),
       [&](Communicator& communicator) {
         communicator.broadcast(data.data(), 100, DType::kFloat64, 1);
       },
       "rank 1 calls broadcast from rank 1 of 100 float64"},
      {[&](Communicator& communicator) {
         communicator.broadcast(data.data(), 100, DType::kFloat64, 0);
       },
       [&](Communicator& communicator) {
         communicator.broadcast(data.data(), 100, DType::kFloat64, 1);
       },
       "rank 0 calls broadcast from rank 0 of 100 float64 as collective 3, rank 1 calls broadcast "
       "from rank 1"},
      {[](Communicator& communicator) { communicator.barrier(); },
       reduce(1, DType::kInt64, ReduceOp::kMin), "rank 0 calls barrier as collective 3"},
  };
  for (const Case& c : cases) {
    for (const ProcessOutcome& outcome : run_two(c.first, c.second)) {
      INFO(outcome.text);
      CHECK(contains(outcome.text, c.text));
      CHECK(contains(outcome.text, ", expected the same on every rank"));
      CHECK_FALSE(contains(outcome.text, "\n"));
      CHECK(outcome.status == 1 << 8);
    }
  }
}

TEST_CASE("a rank that stays away is named when the time is over") {
  RankProcesses ranks(4, [](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 4, milliseconds(500)), exchange);
    RankProcesses::tick(rank);
    if (rank == 1 || rank == 3) {
      usleep(1500000);
    }
    all_reduce(*communicator, 1000, DType::kFloat32, ReduceOp::kSum);
    return std::string("done");
  });
  REQUIRE(ranks.wait_for_ticks(1));
  const std::string missing = "all_reduce sum of 1000 float32 (collective 2): rank 1 (pid " +
                              std::to_string(ranks.pid(1)) + "), rank 3 (pid " +
                              std::to_string(ranks.pid(3)) +
                              ") did not arrive within 0.5 s, expected all 4 ranks";
  for (const ProcessOutcome& outcome : ranks.wait()) {
    INFO(outcome.text);
    CHECK(contains(outcome.text, missing));  // the late ones too: they learn who was missed
    CHECK(outcome.status == 1 << 8);
    CHECK(outcome.seconds < 10);
  }
}

TEST_CASE("the time is the whole collective's, however many ranks are late") {
  RankProcesses ranks(4, [](int rank, const Exchange& exchange) {
    const auto communicator =
        Communicator::connect(settings(rank, 4, milliseconds(1000)), exchange);
    RankProcesses::tick(rank);
    // Rank 0 waits for its neighbours one after the other.
    usleep(static_cast<useconds_t>(rank == 3 ? 4000000 : rank * 800000 / 2));
    const auto begin = std::chrono::steady_clock::now();
    try {
      all_reduce(*communicator, 10, DType::kFloat32, ReduceOp::kSum);
    } catch (const ddp::Error&) {
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      return std::to_string(waited.count());
    }
    return std::string("done");
  });
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  INFO(outcomes[0].text);
  const double waited_seconds = std::stod(outcomes[0].text);
  CHECK(waited_seconds > 0.9);
  CHECK(waited_seconds < 1.5);
}

TEST_CASE("a stopped rank is not a dead one, and is waited for until the time is over") {
  RankProcesses ranks(2, [](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 2, milliseconds(700)), exchange);
    for (;;) {
      all_reduce(*communicator, 10, DType::kFloat32, ReduceOp::kSum);
      RankProcesses::tick(rank);
    }
    return std::string("done");
  });
  REQUIRE(ranks.wait_for_ticks(1));
  kill(ranks.pid(1), SIGSTOP);
  usleep(1500000);
  kill(ranks.pid(1), SIGCONT);
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  INFO(outcomes[0].text);
  CHECK(contains(outcomes[0].text, "rank 1 (pid"));
  CHECK(contains(outcomes[0].text, "did not arrive within 0.7 s"));
}

TEST_CASE("a rank that leaves, and one that fails, end the others") {
  const auto waits = [](Communicator& communicator) {
    all_reduce(communicator, 3, DType::kFloat64, ReduceOp::kSum);
  };
  const auto leaves = [](Communicator&) {};
  const std::vector<ProcessOutcome> outcomes = run_two(waits, leaves);
  INFO(outcomes[0].text);
  CHECK(contains(outcomes[0].text, "rank 1 (pid"));
  CHECK(contains(outcomes[0].text, ") left during all_reduce sum of 3 float64 (collective 3)"));
  CHECK(outcomes[0].seconds < 5);
  CHECK(outcomes[1].text == "done");

  // Every later call repeats the reason.
  const std::vector<ProcessOutcome> again = run_two(
      [&](Communicator& communicator) {
        try {
          waits(communicator);
        } catch (const std::exception&) {
          waits(communicator);
        }
      },
      leaves);
  INFO(again[0].text);
  CHECK(contains(again[0].text, "left during all_reduce"));
}

TEST_CASE("kill -9 of a rank ends the others, who name it", "[kill]") {
  kill_often(50);
}

TEST_CASE("kill -9 of all ranks leaves nothing", "[kill]") {
  const std::set<std::string> names = shared_memory_names();
  std::mt19937 random(11);
  for (int i = 0; i < 20; ++i) {
    RankProcesses ranks(3, [](int rank, const Exchange& exchange) {
      RankProcesses::tick(rank);
      return reduce_for_ever(rank, 3, exchange);
    });
    // While they start, most of the time; the rest while they work.
    REQUIRE(ranks.wait_for_ticks(i % 4 == 0 ? 3 : 1));
    usleep(static_cast<useconds_t>(random() % 8000));
    for (int rank = 0; rank < 3; ++rank) {
      kill(ranks.pid(rank), SIGKILL);
    }
    for (const ProcessOutcome& outcome : ranks.wait()) {
      CHECK(WIFSIGNALED(outcome.status));
    }
  }
  CHECK(shared_memory_names() == names);
}

TEST_CASE("with a name, all the same; a name that a killed job left is removed by the next") {
  const std::set<std::string> names = shared_memory_names();
  const auto body = [](int rank, const Exchange& exchange) {
    Communicator::Settings named = settings(rank, 2);
    named.ways = {Sharing::kName};
    const auto communicator = Communicator::connect(named, exchange);
    std::vector<float> data(100000, static_cast<float>(rank + 1));
    communicator->all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum);
    return std::to_string(data[99999]);
  };
  {
    RankProcesses ranks(2, body);
    for (const ProcessOutcome& outcome : ranks.wait()) {
      CHECK(outcome.text == std::to_string(3.0F));
    }
  }
  CHECK(shared_memory_names() == names);

  // Rank 1 never comes; rank 0 is killed between making the name and removing it.
  {
    RankProcesses ranks(1, [&](int rank, const Exchange&) {
      Segment::create(
          [&](const std::string& mine) {
            RankProcesses::tick(rank);
            if (!mine.empty()) {
              pause();
            }
            return std::vector<std::string>{mine, ""};
          },
          0, 2, 1 << 20, {Sharing::kName});
      return std::string();
    });
    REQUIRE(ranks.wait_for_ticks(1));
    CHECK(shared_memory_names().size() == names.size() + 1);
    CHECK(ddp::shm::remove_stale_names() == 0);  // its owner lives
    kill(ranks.pid(0), SIGKILL);
    ranks.wait();
    CHECK(shared_memory_names().size() == names.size() + 1);
  }
  CHECK(ddp::shm::remove_stale_names() == 1);
  CHECK(shared_memory_names() == names);
}

TEST_CASE("ranks that cannot open rank 0's descriptor use a name") {
  // Where they do not see its process: in a pid namespace of their own.
  const std::set<std::string> names = shared_memory_names();
  RankProcesses ranks(2, [](int rank, const Exchange& exchange) {
    if (rank == 1 && unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
      return std::string("cannot unshare: run this test as root");
    }
    if (rank == 1) {
      const pid_t child = fork();
      if (child != 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return std::string("child ") + std::to_string(status);
      }
      if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          mount("proc", "/proc", "proc", 0, nullptr) != 0) {
        _exit(3);
      }
    }
    const auto communicator = Communicator::connect(settings(rank, 2), exchange);
    std::vector<float> data(100000, static_cast<float>(rank + 1));
    communicator->all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum);
    if (rank == 1) {
      _exit(data[99999] == 3.0F ? 0 : 4);
    }
    return std::to_string(data[99999]);
  });
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  CHECK(outcomes[0].text == std::to_string(3.0F));
  CHECK(outcomes[1].text == "child 0");
  CHECK(shared_memory_names() == names);
}

TEST_CASE("a full /dev/shm is an error with a name, and no matter without") {
  for (const Sharing way : {Sharing::kName, Sharing::kDescriptor}) {
    RankProcesses ranks(2, [way](int rank, const Exchange& exchange) {
      // Both in one namespace: rank 0's, which rank 1 cannot enter. So each mounts its own, and the
      // identity is given: what is tested is the space.
      if (unshare(CLONE_NEWNS) != 0 ||
          mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          mount("none", "/dev/shm", "tmpfs", 0, "size=1m") != 0) {
        return std::string("cannot mount: run this test as root");
      }
      Communicator::Settings small = settings(rank, 2);
      small.ways = {way};
      small.identity.shm_device = 1;
      const auto communicator = Communicator::connect(small, exchange);
      return std::string("connected");
    });
    for (const ProcessOutcome& outcome : ranks.wait()) {
      INFO(outcome.text);
      if (way == Sharing::kDescriptor) {
        CHECK(outcome.text == "connected");
      } else {
        CHECK(std::regex_match(
            outcome.text,
            std::regex("SegmentError: rank 0 cannot reserve 4\\.0 MiB of shared memory \\(No space "
                       "left on device\\); /dev/shm has [01]\\.\\d MiB free")));
      }
    }
  }
}

TEST_CASE("a limit of file sizes is an error, not a signal") {
  RankProcesses ranks(2, [](int rank, const Exchange& exchange) {
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    Communicator::connect(settings(rank, 2), exchange);
    return std::string("connected");
  });
  for (const ProcessOutcome& outcome : ranks.wait()) {
    INFO(outcome.text);
    CHECK(contains(outcome.text, "SegmentError: rank 0 cannot make"));
    CHECK(contains(outcome.text, "the limit of a file's size (ulimit -f) is 1.0 MiB"));
  }
}

TEST_CASE("ranks on two hosts are told apart") {
  struct Case {
    std::function<void(ddp::shm::HostIdentity&)> pretend;
    std::string text;
  };
  for (const Case& c : std::vector<Case>{{[](auto& identity) { identity.host_name = "elsewhere"; },
                                          "rank 2 has host name elsewhere"},
                                         {[](auto& identity) { identity.boot_id = "other-boot"; },
                                          "rank 2 has boot id other-boot"},
                                         {[](auto& identity) { identity.shm_device = 12345; },
                                          "rank 2 has /dev/shm device 12345"}}) {
    RankProcesses ranks(3, [&c](int rank, const Exchange& exchange) {
      Communicator::Settings other = settings(rank, 3);
      if (rank == 2) {
        c.pretend(other.identity);
      }
      Communicator::connect(other, exchange);
      return std::string("connected");
    });
    for (const ProcessOutcome& outcome : ranks.wait()) {
      INFO(outcome.text);
      CHECK(contains(outcome.text, "SegmentError: " + c.text + ", rank 0 "));
      CHECK(contains(outcome.text, ", expected all ranks on one host"));
    }
  }
}

TEST_CASE("more ranks than there is room for are refused") {
  RankProcesses ranks(65, [](int rank, const Exchange& exchange) {
    Communicator::connect(settings(rank, 65), exchange);
    return std::string("connected");
  });
  for (const ProcessOutcome& outcome : ranks.wait()) {
    CHECK(outcome.text == "SegmentError: world size is 65, expected at most 64");
  }
}

TEST_CASE("64 ranks on however few processors") {
  RankProcesses ranks(64, [](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 64), exchange);
    for (const size_t count : {1U, 256U, 257U, 100000U}) {
      std::vector<int32_t> data(count, 1 << (rank % 24));
      communicator->all_reduce(data.data(), count, DType::kInt32, ReduceOp::kMax);
      if (data[0] != 1 << 23 || data[count - 1] != 1 << 23) {
        return "wrong at " + std::to_string(count);
      }
    }
    return std::string("done");
  });
  for (const ProcessOutcome& outcome : ranks.wait()) {
    CHECK(outcome.text == "done");
  }
}
