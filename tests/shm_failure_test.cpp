// What happens over shared memory when ranks disagree, stop, leave or are killed, and that nothing
// is left behind. Ranks are processes here.
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sched.h>

#include <chrono>
#include <csignal>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "common/backends/shm/shm_communicator.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/shm_ranks.hpp"

namespace {

using ddp::DType;
using ddp::Exchange;
using ddp::ReduceOp;
using ddp::shm::Communicator;
using ddp::shm::Segment;
using ddp::shm::Sharing;
using ddp::test::contains;
using ddp::test::count_shared_memory_names;
using ddp::test::own_shared_memory;
using ddp::test::ProcessOutcome;
using ddp::test::RankProcesses;
using std::chrono::milliseconds;

/// Longer than any test waits: what ends before was noticed.
Communicator::Settings settings(int rank, int world_size) {
  return {.rank = rank, .world_size = world_size, .timeout = std::chrono::minutes(10)};
}

void all_reduce(Communicator& communicator, size_t count, DType dtype = DType::kFloat32,
                ReduceOp op = ReduceOp::kSum) {
  std::vector<double> data(count);
  communicator.all_reduce(data.data(), count, dtype, op);
}

/// Runs `body` on connected ranks, processes of their own.
std::vector<ProcessOutcome> run_connected(
    int world_size, const std::function<std::string(Communicator& communicator)>& body) {
  RankProcesses ranks(world_size, [&](int rank, const Exchange& exchange) {
    return body(*Communicator::connect(settings(rank, world_size), exchange));
  });
  return ranks.wait();
}

/// What ranks say that try to connect with `change`d settings.
std::vector<ProcessOutcome> connect_with(
    int world_size, const std::function<void(Communicator::Settings& settings)>& change) {
  RankProcesses ranks(world_size, [&](int rank, const Exchange& exchange) {
    Communicator::Settings changed = settings(rank, world_size);
    change(changed);
    Communicator::connect(changed, exchange);
    return std::string("connected");
  });
  return ranks.wait();
}

/// All-reduces without end: small ones, large ones in private memory, and large ones in place.
std::string reduce_for_ever(int rank, int world_size, const Exchange& exchange) {
  const auto communicator = Communicator::connect(settings(rank, world_size), exchange);
  const auto region = communicator->allocate(1 << 20);
  for (;;) {
    all_reduce(*communicator, 100);
    all_reduce(*communicator, 100000);
    communicator->all_reduce(region.get(), 1 << 18, DType::kFloat32, ReduceOp::kMax);
    RankProcesses::tick(rank);
  }
}

/// "3.000000" where the sum of two ranks' large vectors is right.
std::string sum_of_two(Communicator& communicator) {
  std::vector<float> data(100000, static_cast<float>(communicator.rank() + 1));
  communicator.all_reduce(data.data(), data.size(), DType::kFloat32, ReduceOp::kSum);
  return std::to_string(data[99999]);
}

/// Whether a rank ended with code 1 and one line in which `part` stands.
bool failed_with(const ProcessOutcome& outcome, const std::string& part) {
  return outcome.status == 1 << 8 && contains(outcome.text, part) && !contains(outcome.text, "\n");
}

}  // namespace

TEST_CASE("calls that differ are refused by both ranks, with both calls") {
  using Body = std::function<void(Communicator&)>;
  const auto reduce = [](size_t count, DType dtype, ReduceOp op) {
    return [=](Communicator& communicator) { all_reduce(communicator, count, dtype, op); };
  };
  const auto broadcast_from = [](int root) {
    return [root](Communicator& communicator) {
      std::vector<double> data(100);
      communicator.broadcast(data.data(), 100, DType::kFloat64, root);
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
       "rank 0 calls all_reduce sum of 100 float32, "
       "rank 1 calls all_reduce sum of 50 float32"},
      {reduce(100000, DType::kFloat32, ReduceOp::kSum), sum, "sum of 100000 float32, rank 1"},
      {sum, reduce(100, DType::kInt32, ReduceOp::kSum), "rank 1 calls all_reduce sum of 100 int32"},
      {sum, reduce(100, DType::kFloat32, ReduceOp::kMax),
       "rank 1 calls all_reduce max of 100 float32"},
      {reduce(100, DType::kFloat64, ReduceOp::kSum), broadcast_from(1),
       "rank 1 calls broadcast from rank 1 of 100 float64"},
      {broadcast_from(0), broadcast_from(1),
       "rank 0 calls broadcast from rank 0 of 100 float64, rank 1 calls broadcast "
       "from rank 1"},
      {[](Communicator& communicator) { communicator.barrier(); },
       reduce(1, DType::kInt64, ReduceOp::kMin), "rank 0 calls barrier"},
  };
  for (const Case& c : cases) {
    for (const ProcessOutcome& outcome : run_connected(2, [&](Communicator& communicator) {
           communicator.barrier();
           (communicator.rank() == 0 ? c.first : c.second)(communicator);
           return std::string("done");
         })) {
      INFO(outcome.text);
      CHECK(failed_with(outcome, c.text));
      CHECK(contains(outcome.text, ", expected the same on every rank"));
    }
  }
}

TEST_CASE("a rank that stays away is named when the time is over") {
  RankProcesses ranks(4, [](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 4), exchange);
    communicator->set_timeout(milliseconds(1500));
    RankProcesses::tick(rank);
    if (rank % 2 == 1) {
      RankProcesses::await(0, 2);
      RankProcesses::await(2, 2);
    } else {
      RankProcesses::await(2 - rank, 1);  // both set out together
    }
    try {
      all_reduce(*communicator, 1000);
    } catch (const ddp::Error&) {
      RankProcesses::tick(rank);
      throw;
    }
    return std::string("done");
  });
  const std::string missing = fmt::format(
      "all_reduce sum of 1000 float32: rank 1 (pid {}), rank 3 (pid {}) did not "
      "arrive within 1.5 s, expected all 4 ranks",
      ranks.pid(1), ranks.pid(3));
  for (const ProcessOutcome& outcome : ranks.wait()) {
    INFO(outcome.text);
    CHECK(failed_with(outcome, missing));  // the late ones too: they learn who was missed
  }
}

TEST_CASE("the time is the whole meeting's, however many ranks are late") {
  constexpr milliseconds kTimeout{2000};
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  RankProcesses ranks(4, [&](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 4), exchange);
    communicator->set_timeout(kTimeout);
    // Rank 0 waits for its neighbours one after the other, and for the last one in vain.
    if (rank == 3) {
      RankProcesses::await(0, 1);
      return std::string("0 0");
    }
    usleep(static_cast<useconds_t>(rank * 800000));
    const double began = now();
    try {
      all_reduce(*communicator, 10);
    } catch (const ddp::Error&) {
      RankProcesses::tick(rank);
    }
    return fmt::format("{} {}", began, now());
  });
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  std::vector<double> began;
  std::vector<double> ended;
  for (const ProcessOutcome& outcome : outcomes) {
    INFO(outcome.text);
    size_t length = 0;
    began.push_back(std::stod(outcome.text, &length));
    ended.push_back(std::stod(outcome.text.substr(length)));
  }
  CHECK(ended[0] - began[0] >= 2);
  CHECK(ended[0] - began[2] < 2);  // not counted again from when a neighbour came
}

TEST_CASE("a stopped rank is not a dead one, and is waited for until the time is over") {
  RankProcesses ranks(2, [](int rank, const Exchange& exchange) {
    const auto communicator = Communicator::connect(settings(rank, 2), exchange);
    communicator->set_timeout(milliseconds(700));
    RankProcesses::tick(rank);
    try {
      for (;;) {
        all_reduce(*communicator, 10);
      }
    } catch (const ddp::Error&) {
      RankProcesses::tick(rank);
      throw;
    }
    return std::string("done");
  });
  ranks.await_all(1);
  kill(ranks.pid(1), SIGSTOP);
  RankProcesses::await(0, 2);
  kill(ranks.pid(1), SIGCONT);
  const std::string stopped = fmt::format("rank 1 (pid {})", ranks.pid(1));
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  INFO(outcomes[0].text);
  CHECK(failed_with(outcomes[0], stopped));
  CHECK(contains(outcomes[0].text, "did not arrive within 0.7 s"));
}

TEST_CASE("a rank that leaves ends the others, and every later call repeats the reason") {
  for (const bool tries_again : {false, true}) {
    const std::vector<ProcessOutcome> outcomes = run_connected(2, [&](Communicator& communicator) {
      if (communicator.rank() == 0 && tries_again) {
        try {
          all_reduce(communicator, 3, DType::kFloat64);
        } catch (const ddp::Error&) {
        }
      }
      if (communicator.rank() == 0) {
        all_reduce(communicator, 3, DType::kFloat64);
      }
      return std::string("done");
    });
    INFO(outcomes[0].text);
    CHECK(failed_with(outcomes[0], "rank 1 (pid"));
    CHECK(contains(outcomes[0].text, ") left during all_reduce sum of 3 float64"));
    CHECK(outcomes[1].text == "done");
  }
}

TEST_CASE("a segment that belongs to another user is not mapped") {
  own_shared_memory();
  constexpr uid_t kNobody = 65534;
  RankProcesses ranks(2, [](int rank, const Exchange& exchange) {
    Communicator::Settings named = settings(rank, 2);
    named.ways = {Sharing::kName};
    const Exchange given_away = [&exchange, rank](const std::string& mine) {
      const std::vector<std::string> offers = exchange(mine);
      const std::string name = offers[0].substr(offers[0].rfind(' ') + 1);
      if (rank == 1 && name.starts_with("/ddp-cpp-") &&
          chown(("/dev/shm" + name).c_str(), kNobody, kNobody) != 0) {
        throw std::runtime_error("chown failed");
      }
      return offers;
    };
    Communicator::connect(named, given_away);
    return std::string("connected");
  });
  for (const ProcessOutcome& outcome : ranks.wait()) {
    INFO(outcome.text);
    CHECK(contains(outcome.text, "rank 1 /dev/shm/ddp-cpp-"));
    CHECK(contains(outcome.text, "belongs to user 65534, expected user 0"));
  }
}

TEST_CASE("kill -9 of a rank ends the others, who name it", "[kill]") {
  own_shared_memory();
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const int world_size = 2 + i % 3;
    const int victim = static_cast<int>(random() % static_cast<unsigned>(world_size));
    RankProcesses ranks(world_size, [world_size](int rank, const Exchange& exchange) {
      return reduce_for_ever(rank, world_size, exchange);
    });
    ranks.await_all(1);
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
  CHECK(count_shared_memory_names() == 0);
}

TEST_CASE("kill -9 of all ranks leaves nothing", "[kill]") {
  own_shared_memory();
  std::mt19937 random(11);
  for (int i = 0; i < 20; ++i) {
    RankProcesses ranks(3, [](int rank, const Exchange& exchange) {
      RankProcesses::tick(rank);
      return reduce_for_ever(rank, 3, exchange);
    });
    // While they start, most of the time; the rest while they work.
    ranks.await_all(i % 4 == 0 ? 3 : 1);
    usleep(static_cast<useconds_t>(random() % 8000));
    for (int rank = 0; rank < 3; ++rank) {
      kill(ranks.pid(rank), SIGKILL);
    }
    for (const ProcessOutcome& outcome : ranks.wait()) {
      CHECK(WIFSIGNALED(outcome.status));
    }
  }
  CHECK(count_shared_memory_names() == 0);
}

TEST_CASE("with a name, all the same; a name that a killed job left is removed by the next") {
  own_shared_memory();
  RankProcesses two(2, [](int rank, const Exchange& exchange) {
    Communicator::Settings named = settings(rank, 2);
    named.ways = {Sharing::kName};
    return sum_of_two(*Communicator::connect(named, exchange));
  });
  for (const ProcessOutcome& outcome : two.wait()) {
    CHECK(outcome.text == "3.000000");
  }
  CHECK(count_shared_memory_names() == 0);

  // Rank 1 never comes; rank 0 is killed between making the name and removing it.
  RankProcesses one(1, [](int rank, const Exchange&) {
    const Exchange never = [rank](const std::string&) -> std::vector<std::string> {
      RankProcesses::tick(rank);
      for (;;) {
        pause();
      }
    };
    Segment::create(never, 0, 2, 1 << 20, {Sharing::kName});
    return std::string();
  });
  one.await_all(1);
  CHECK(count_shared_memory_names() == 1);
  CHECK(ddp::shm::remove_stale_names() == 0);  // its owner lives
  kill(one.pid(0), SIGKILL);
  one.wait();
  CHECK(count_shared_memory_names() == 1);
  CHECK(ddp::shm::remove_stale_names() == 1);
  CHECK(count_shared_memory_names() == 0);
}

TEST_CASE("ranks that cannot open rank 0's descriptor use a name") {
  // Where they do not see its process: in a pid namespace of their own.
  own_shared_memory();
  RankProcesses ranks(2, [](int rank, const Exchange& exchange) {
    if (rank == 1) {
      if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
        return std::string("cannot unshare: run this test as root");
      }
      const pid_t child = fork();
      if (child != 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return "child " + std::to_string(status);
      }
      if (mount("proc", "/proc", "proc", 0, nullptr) != 0) {
        _exit(3);
      }
    }
    const std::string sum = sum_of_two(*Communicator::connect(settings(rank, 2), exchange));
    if (rank == 1) {
      _exit(sum == "3.000000" ? 0 : 4);
    }
    return sum;
  });
  const std::vector<ProcessOutcome> outcomes = ranks.wait();
  CHECK(outcomes[0].text == "3.000000");
  CHECK(outcomes[1].text == "child 0");
  CHECK(count_shared_memory_names() == 0);
}

TEST_CASE("a full /dev/shm is an error with a name, and no matter without") {
  own_shared_memory("size=1m");
  for (const Sharing way : {Sharing::kName, Sharing::kDescriptor}) {
    for (const ProcessOutcome& outcome :
         connect_with(2, [way](Communicator::Settings& changed) { changed.ways = {way}; })) {
      INFO(outcome.text);
      const std::regex expected(way == Sharing::kDescriptor
                                    ? "connected"
                                    : "SegmentError: rank 0 cannot reserve 4\\.0 MiB of shared "
                                      "memory \\(No space left on device\\); /dev/shm has "
                                      "[01]\\.\\d MiB free");
      CHECK(std::regex_match(outcome.text, expected));
    }
  }
}

TEST_CASE("a limit of file sizes is an error, not a signal") {
  for (const ProcessOutcome& outcome : connect_with(2, [](Communicator::Settings&) {
         const rlimit limit{1 << 20, 1 << 20};
         setrlimit(RLIMIT_FSIZE, &limit);
       })) {
    INFO(outcome.text);
    CHECK(contains(outcome.text, "SegmentError: rank 0 cannot make"));
    CHECK(contains(outcome.text, "the limit of a file's size (ulimit -f) is 1.0 MiB"));
  }
}

TEST_CASE("ranks on two hosts are told apart") {
  const std::vector<std::pair<std::function<void(ddp::shm::HostIdentity&)>, std::string>> cases = {
      {[](auto& identity) { identity.host_name = "elsewhere"; }, "host name elsewhere"},
      {[](auto& identity) { identity.boot_id = "other-boot"; }, "boot id other-boot"},
      {[](auto& identity) { identity.shm_device = 12345; }, "/dev/shm device 12345"}};
  for (const auto& [pretend, text] : cases) {
    const std::regex expected("SegmentError: rank 2 has " + text +
                              ", rank 0 \\S+, expected all ranks on one host");
    for (const ProcessOutcome& outcome : connect_with(3, [&](Communicator::Settings& changed) {
           if (changed.rank == 2) {
             pretend(changed.identity);
           }
         })) {
      INFO(outcome.text);
      CHECK(std::regex_match(outcome.text, expected));
    }
  }
}

TEST_CASE("more ranks than there is room for are refused") {
  for (const ProcessOutcome& outcome : connect_with(65, [](Communicator::Settings&) {})) {
    CHECK(outcome.text == "SegmentError: world size is 65, expected at most 64");
  }
}

TEST_CASE("64 ranks on however few processors") {
  for (const ProcessOutcome& outcome : run_connected(64, [](Communicator& communicator) {
         for (const size_t count : {1U, 256U, 257U, 100000U}) {
           std::vector<int32_t> data(count, 1 << (communicator.rank() % 24));
           communicator.all_reduce(data.data(), count, DType::kInt32, ReduceOp::kMax);
           if (data[0] != 1 << 23 || data[count - 1] != 1 << 23) {
             return "wrong at " + std::to_string(count);
           }
         }
         return std::string("done");
       })) {
    CHECK(outcome.text == "done");
  }
}
