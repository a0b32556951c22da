// The simulator of ranks: times that were computed by hand, deadlocks, memory, what it draws, and
// its programs.
#include "simulator/simulator.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "simulator/drawing.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using namespace ddp::sim;
using ddp::test::contains;
using ddp::test::run_program;

constexpr int64_t kMib = 1 << 20;
/// Alpha 10 us, beta 100 us a MiB.
const Network kRing(10, 100, ddp::bench::AllReduceAlgorithm::kRing);
const Network kTree(10, 100, ddp::bench::AllReduceAlgorithm::kTree);

/// Equal but for the rounding of a few additions.
void require_us(double us, double expected) {
  REQUIRE(us == Approx(expected).epsilon(1e-12).margin(1e-9));
}

double step_of(const std::function<void()>& rank, int nprocs, const Network& network = kRing) {
  return step_us.of(run_ranks(rank, nprocs, network));
}

std::string error_of(const std::function<void()>& rank, int nprocs) {
  try {
    run_ranks(rank, nprocs, kRing);
  } catch (const ddp::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("collectives cost what their formulas say") {
  struct Case {
    Kind kind;
    double ring_us;
    double tree_us;
  };
  // 4 ranks, 1 MiB.
  for (const Case& one : std::vector<Case>{
           {Kind::kAllReduce, 6 * 10 + 1.5 * 100, 4 * 10 + 2 * 100},
           {Kind::kReduceScatter, 3 * 10 + 0.75 * 100, 2 * 10 + 100},
           {Kind::kAllGather, 3 * 10 + 3 * 100, 2 * 10 + 4 * 100},
           {Kind::kAllToAll, 3 * (10 + 25), 3 * (10 + 25)},
           {Kind::kBroadcast, 3 * 10 + 100, 2 * 10 + 100},
           {Kind::kReduce, 3 * 10 + 100, 2 * 10 + 100},
           {Kind::kGather, 3 * 110, 3 * 110},
           {Kind::kScatter, 3 * 110, 3 * 110},
           {Kind::kBarrier, 6 * 10, 4 * 10},
       }) {
    INFO(to_string(one.kind));
    require_us(kRing.collective_us(one.kind, kMib, 4), one.ring_us);
    require_us(kTree.collective_us(one.kind, kMib, 4), one.tree_us);
    require_us(kRing.collective_us(one.kind, kMib, 1), 0);
  }
  require_us(kRing.message_us(kMib / 2.0), 60);
}

TEST_CASE("a sweep of one world size is taken for a ring's, and costs what was fitted") {
  ddp::bench::CommunicationModel model;
  model.world_sizes = {4};
  model.regimes = {{0, 60, 150}};
  const Network network(model);
  require_us(network.collective_us(Kind::kAllReduce, 2 * kMib, 4), 60 + 2 * 150);
  require_us(network.message_us(kMib), 10 + 100);
  // Sizes have their regimes.
  model.algorithm = ddp::bench::AllReduceAlgorithm::kRing;
  model.world_sizes = {2, 4};
  model.regimes = {{0, 1, 0}, {kMib, 10, 100}};
  require_us(Network(model).message_us(kMib - 1), 1);
  require_us(Network(model).message_us(kMib), 110);
}

TEST_CASE("compute and communication overlap until wait()") {
  const auto after = [] {
    compute(300, "backward");
    wait(all_reduce(kMib));
    compute(50, "optimizer");
  };
  // 2 ranks: 2 messages of 10 us, 1 MiB of 100 us.
  require_us(step_of(after, 2), 300 + 120 + 50);
  const Simulation simulation = run_ranks(
      [] {
        compute(100);
        const Handle first = all_reduce(kMib);
        compute(200);
        const Handle second = all_reduce(2 * kMib);
        wait(first);
        wait(second);
      },
      2, kRing);
  const RankRecord& rank = simulation.ranks[1];
  require_us(rank.end_us, 300 + 220);
  require_us(rank.waited_us(), 220);  // for the second alone
  REQUIRE(rank.communication.size() == 2);
  require_us(rank.communication[0].begin_us, 100);
  require_us(rank.communication[0].end_us, 220);
  require_us(rank.communication[1].begin_us, 300);
  REQUIRE(rank.messages == 4);
  require_us(rank.sent_bytes, 3.0 * kMib);
}

TEST_CASE("one rank's communication goes one after the other") {
  require_us(step_of(
                 [] {
                   const Handle first = all_reduce(kMib);
                   const Handle second = all_reduce(kMib);
                   wait(second);
                   wait(first);
                 },
                 2),
             240);
}

TEST_CASE("a collective begins when its last rank is there") {
  const Simulation simulation = run_ranks(
      [] {
        compute(my_rank() == 1 ? 500 : 100);
        wait(barrier());
      },
      3, kRing);
  for (const RankRecord& rank : simulation.ranks) {
    require_us(rank.end_us, 500 + 40);
  }
  require_us(simulation.ranks[0].waited_us(), 440);
  require_us(simulation.ranks[1].waited_us(), 40);
  require_us(waited_us.of(simulation), 440);
}

TEST_CASE("a message begins when both ranks have called, and both directions at once") {
  const Simulation simulation = run_ranks(
      [] {
        if (my_rank() == 0) {
          wait(send(1, kMib));
          compute(5);
        } else {
          compute(70);
          wait(recv(0, kMib));
        }
      },
      2, kRing);
  require_us(simulation.ranks[0].end_us, 70 + 110 + 5);
  require_us(simulation.ranks[1].end_us, 70 + 110);
  REQUIRE(simulation.ranks[0].messages == 1);
  REQUIRE(simulation.ranks[1].messages == 0);
  const auto exchange = [] {
    const Handle sent = send(1 - my_rank(), kMib);
    wait(recv(1 - my_rank(), kMib));
    wait(sent);
  };
  require_us(step_of(exchange, 2), 110);
}

TEST_CASE("numbers are moved as they were when send() was called") {
  const Simulation simulation = run_ranks(
      [] {
        std::vector<float> values{static_cast<float>(my_rank()), 7};
        std::vector<float> received(2, -1);
        const Handle sent = send((my_rank() + 1) % 3, values);
        values[0] = 99;
        const Handle arrives = recv((my_rank() + 2) % 3, received);
        check(received[0] == -1, "nothing is there before wait()");
        wait(arrives);
        wait(sent);
        check(received[0] == static_cast<float>((my_rank() + 2) % 3), "the one before's number");
        check(received[1] == 7, "the second number");
      },
      3, kRing);
  REQUIRE(simulation.complaints.empty());
  const Simulation wrong = run_ranks([] { check(my_rank() == 0, "is rank 0"); }, 2, kRing);
  REQUIRE(wrong.complaints == std::vector<std::string>{"rank 1: not so: is rank 0"});
}

TEST_CASE("ranks that wait for one another for ever are named, and what for") {
  REQUIRE(
      error_of(
          [] {
            compute(100);
            if (my_rank() == 0) {
              wait(broadcast(8));
            }
            wait(all_reduce(16));
          },
          4) ==
      "deadlock at 100 us: rank 0 waits for broadcast with root 0 of 8 bytes; ranks 1 to 3 wait "
      "for all_reduce of 16 bytes");
  REQUIRE(
      error_of([] { wait(all_reduce(my_rank() == 1 ? 4 : 8)); }, 2) ==
      "deadlock at 0 us: rank 0 waits for all_reduce of 8 bytes; rank 1 waits for all_reduce of "
      "4 bytes");
  REQUIRE(error_of(
              [] {
                if (my_rank() != 1) {
                  wait(barrier());
                }
              },
              3) == "deadlock at 0 us: ranks 0, 2 wait for barrier; rank 1 returned");
  // Everybody sends before anybody receives.
  REQUIRE(error_of(
              [] {
                wait(send(1 - my_rank(), 4));
                wait(recv(1 - my_rank(), 4));
              },
              2) ==
          "deadlock at 0 us: rank 0 waits for send to rank 1 (4 bytes); rank 1 waits for send to "
          "rank 0 (4 bytes)");
  REQUIRE(
      error_of(
          [] {
            const Handle first = my_rank() == 0 ? all_reduce(4) : barrier();
            wait(my_rank() == 0 ? barrier() : all_reduce(4));
            wait(first);
          },
          2) ==
      "deadlock at 0 us: rank 0 waits for barrier behind its all_reduce of 4 bytes; rank 1 waits "
      "for all_reduce of 4 bytes behind its barrier");
}

TEST_CASE("what a program must not do is refused, on whatever rank") {
  const auto on_rank_1 = [](const std::function<void()>& what) {
    return [what] {
      if (my_rank() == 1) {
        what();
      }
    };
  };
  REQUIRE(error_of(on_rank_1([] { compute(-1); }), 2) ==
          "compute: got -1 us on rank 1, expected 0 or more");
  REQUIRE(error_of(on_rank_1([] { compute(std::nan("")); }), 2) ==
          "compute: got nan us on rank 1, expected 0 or more");
  REQUIRE(error_of(on_rank_1([] { wait(all_reduce(-4)); }), 2) ==
          "all_reduce: got -4 bytes on rank 1, expected 0 or more");
  REQUIRE(error_of(on_rank_1([] { wait(broadcast(4, 2)); }), 2) ==
          "broadcast: got root 2 on rank 1, expected 0 to 1");
  REQUIRE(error_of(on_rank_1([] { wait(send(1, 4)); }), 2) ==
          "send: got rank 1 on rank 1, expected another of 0 to 1");
  REQUIRE(error_of([] { wait(my_rank() == 0 ? send(1, 4) : recv(0, 8)); }, 2) ==
          "rank 0 sends 4 bytes to rank 1, which receives 8");
  REQUIRE(contains(error_of(
                       [] {
                         const Handle twice = barrier();
                         wait(twice);
                         wait(twice);
                       },
                       1),
                   "was waited for before"));
  REQUIRE(contains(error_of(
                       [] {
                         for (;;) {
                           compute(1);
                         }
                       },
                       1),
                   "expected a program that ends"));
  REQUIRE_THROWS_AS(run_ranks([] {}, 0, kRing), ddp::UsageError);
  REQUIRE_THROWS_AS(my_rank(), std::logic_error);
}

TEST_CASE("a result that nobody waits for is a mistake") {
  const Simulation simulation = run_ranks(
      [] {
        const Handle sum = all_reduce(8);
        if (my_rank() == 0) {
          wait(sum);
        }
      },
      2, kRing);
  REQUIRE(simulation.complaints ==
          std::vector<std::string>{"rank 1 never waited for its all_reduce of 8 bytes"});
}

TEST_CASE("memory has its high-water mark, by rank") {
  const Simulation simulation = run_ranks(
      [] {
        allocate(100);
        compute(10);
        if (my_rank() == 1) {
          allocate(50);
          free(150);
          allocate(120);
        }
        compute(10);
      },
      2, kRing);
  REQUIRE(simulation.ranks[0].peak_bytes == 100);
  REQUIRE(simulation.ranks[1].peak_bytes == 150);
  REQUIRE(simulation.ranks[1].memory.back().bytes == 120);
  require_us(simulation.ranks[1].memory.back().at_us, 10);
  REQUIRE((peak_bytes <= 150).is_met(simulation));
  REQUIRE_FALSE((peak_bytes <= 149).is_met(simulation));
  REQUIRE(error_of(
              [] {
                allocate(4);
                free(5);
              },
              1) == "rank 0 frees 5 bytes, but has only 4");
}

TEST_CASE("targets compare") {
  const Simulation simulation = run_ranks([] { compute(100); }, 1, kRing);
  REQUIRE((step_us <= 100).is_met(simulation));
  REQUIRE_FALSE((step_us <= 99.999).is_met(simulation));
  REQUIRE((step_us >= 100).is_met(simulation));
  REQUIRE_FALSE((step_us >= 100.001).is_met(simulation));
  REQUIRE((step_us == 100).is_met(simulation));
  REQUIRE_FALSE((step_us == 100.001).is_met(simulation));
  REQUIRE((step_us <= 99.5).text() == "step_us <= 99.5");
}

TEST_CASE("lanes are drawn column by column, and two runs are the same") {
  const auto rank = [] {
    compute(20, "forward");
    const Handle sum = all_reduce(0, "sum");
    compute(10, "backward");
    allocate(2 * kMib);
    wait(sum);
    compute(40, "final");
  };
  const std::string text = draw_text(run_ranks(rank, 2, kRing), 8);
  REQUIRE(text ==
          "rank 0    compute       |ffb.iiii|\n"
          "          communication |  ss    |\n"
          "          memory        |   █████| 2.0 MiB at most\n"
          "rank 1    compute       |ffb.iiii|\n"
          "          communication |  ss    |\n"
          "          memory        |   █████| 2.0 MiB at most\n"
          "                        0 80.0 us\n"
          "f forward, b backward, i final, s sum, . waiting\n");
  const std::string svg = draw_svg(run_ranks(rank, 2, kRing), "a < b & \"c\"");
  REQUIRE(svg == draw_svg(run_ranks(rank, 2, kRing), "a < b & \"c\""));
  REQUIRE(contains(svg, "a &lt; b &amp; &quot;c&quot;"));
  REQUIRE(contains(svg, "<title>backward: 20.0 to 30.0 us</title>"));
}

TEST_CASE("the programs decide by their targets and say what is wrong with a command") {
  const std::string bin = DDP_BIN_DIR;
  for (const char* name : {"sim_after_backward", "sim_buckets", "sim_late_rank"}) {
    INFO(name);
    const auto result = run_program({bin + "/" + name});
    REQUIRE(result.exit_code == 0);
    REQUIRE(contains(result.out, ": met, "));
    REQUIRE_FALSE(contains(result.out, "missed"));
    REQUIRE(result.out == run_program({bin + "/" + name}).out);
  }
  const auto missed = run_program({bin + "/sim_buckets", "--alpha-us", "20"});
  REQUIRE(missed.exit_code == 1);
  REQUIRE(contains(missed.out, "target step_us <= 2230: missed, 2243.3"));
  const auto deadlock = run_program({bin + "/sim_deadlock"});
  REQUIRE(deadlock.exit_code == 1);
  REQUIRE(deadlock.out.empty());
  REQUIRE(deadlock.err ==
          "sim_deadlock: error: deadlock at 500 us: rank 0 waits for broadcast with root 0 of 4096 "
          "bytes; ranks 1, 2 wait for all_reduce of 1048576 bytes\n");
  for (const auto& [arguments, said] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--set", "forwrad_us=1"}, "--set: got \"forwrad_us\", expected one of "},
           {{"--set", "forward_us"}, "expected NAME=NUMBER"},
           {{"--set", "forward_us=-1"}, "expected a number from 0"},
           {{"--alpha-us", "nan"}, "expected a number from 0"},
           {{"--nprocs", "0"}, "expected an integer from 1 to 1024"},
           {{"--algorithm", "star"}, "expected ring or tree"},
           {{"--backend", "gloo"}, "expected --network with it"},
           {{"--network", "x", "--alpha-us", "1"}, "--alpha-us"},
           {{"--svg", "/no/such/folder/a.svg"}, "--svg: got "}}) {
    std::vector<std::string> command{bin + "/sim_buckets"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const auto result = run_program(command);
    INFO(result.err);
    REQUIRE(result.exit_code == 2);
    REQUIRE(contains(result.err, said));
    REQUIRE(result.err.find('\n') == result.err.size() - 1);
  }
}

TEST_CASE("the exercise's task misses its targets, and its solution meets them") {
  const std::string bin = DDP_BIN_DIR;
  const auto task = run_program({bin + "/sim_ring_all_reduce"});
  REQUIRE(task.exit_code == 1);
  REQUIRE(contains(task.out, "target messages == 6: missed, 0"));
  REQUIRE(contains(task.out, "rank 1: not so: has the sum of all ranks' values"));
  const auto solution = run_program({bin + "/sim_ring_all_reduce_solution"});
  REQUIRE(solution.exit_code == 0);
  REQUIRE(contains(solution.out, "target step_us <= 210: met, 210"));
  // Any number of ranks, though the targets are of four.
  for (const std::string nprocs : {"1", "2", "3", "7"}) {
    REQUIRE_FALSE(contains(
        run_program({bin + "/sim_ring_all_reduce_solution", "--nprocs", nprocs}).out, "not so"));
  }
}

TEST_CASE("alpha and beta come from a sweep of bench_micro") {
  const std::string path = std::filesystem::temp_directory_path() / "sweep.json";
  std::string benchmarks;
  // 2 ranks: 40 us and 200 us a MiB, so alpha 20 and beta 200 of a message.
  for (const int64_t bytes : {1024, 65536, 1048576, 4194304}) {
    const double us = 40 + 200.0 * static_cast<double>(bytes) / kMib;
    const std::string text = std::to_string(us);
    for (const std::string backend : {"gloo", "shm"}) {
      benchmarks +=
          std::string(benchmarks.empty() ? "" : ",") + "{\"name\":\"all_reduce/" + backend +
          "/ranks:2/bytes:" + std::to_string(bytes) + "\",\"run_name\":\"all_reduce/" + backend +
          "/ranks:2/bytes:" + std::to_string(bytes) +
          "\",\"run_type\":\"iteration\",\"repetitions\":1,\"iterations\":10,\"real_time\":" +
          text +
          ",\"cpu_time\":0,\"time_unit\":\"us\",\"ranks\":2,\"bytes\":" + std::to_string(bytes) +
          ",\"time_us_median\":" + text + ",\"time_us_p10\":" + text + ",\"time_us_p90\":" + text +
          ",\"time_us_p95\":" + text +
          ",\"time_us_n\":10,\"algorithm_bandwidth\":1e9,\"bus_bandwidth\":1e9}";
    }
  }
  std::ofstream(path) << "{\"context\":{\"device\":\"cpu\"},\"benchmarks\":[" << benchmarks << "]}";
  require_us(std::round(1e3 * read_network(path, "gloo").message_us(kMib)), 220e3);
  REQUIRE_THROWS_AS(read_network(path, ""), ddp::UsageError);
  REQUIRE_THROWS_AS(read_network(path, "mpi"), ddp::UsageError);
  REQUIRE_THROWS_AS(read_network("no_such_file.json", ""), ddp::Error);
}
