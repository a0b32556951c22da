// The simulator of ranks: times computed by hand, deadlocks, mistakes, and its programs.
#include "simulator/simulator.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/base/files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using namespace ddp::sim;

constexpr int64_t kMib = 1 << 20;
const Network kNetwork{.alpha_us = 10, .beta_us_per_mib = 100};

/// Requires equal times, apart from the rounding of a few additions.
void require_us(double us, double expected) {
  REQUIRE(us == Approx(expected).epsilon(1e-12).margin(1e-9));
}

Simulation run(const std::function<void()>& rank, int nprocs) {
  Simulation simulation = run_ranks(rank, nprocs, kNetwork);
  if (!simulation.deadlock.empty()) {
    throw std::runtime_error(simulation.deadlock);
  }
  return simulation;
}

}  // namespace

TEST_CASE("collectives cost what their formulas say") {
  const std::vector<std::pair<Operation, double>> costs_us = {{kAllReduce, 6 * 10 + 1.5 * 100},
                                                              {kReduceScatter, 3 * 10 + 0.75 * 100},
                                                              {kAllGather, 3 * 10 + 3 * 100},
                                                              {kBroadcast, 3 * 10 + 100},
                                                              {kBarrier, 6 * 10}};
  for (const auto& [operation, us] : costs_us) {
    INFO(operation.name);
    require_us(kNetwork.us(operation.traffic(4, kMib)), us);
    require_us(kNetwork.us(operation.traffic(1, kMib)), 0);
  }
  require_us(kNetwork.us(kSend.traffic(4, kMib / 2.0)), 60);
}

TEST_CASE("compute and communication overlap until wait()") {
  const Simulation simulation = run(
      [] {
        compute(100);
        const Handle first = all_reduce(kMib);
        compute(200);
        const Handle second = all_reduce(2 * kMib);
        wait(first);
        wait(second);
        compute(50);
      },
      2);
  const RankRecord& rank = simulation.ranks[1];
  require_us(rank.end_us, 300 + 220 + 50);
  require_us(rank.waited_us, 220);  // only for the second
  REQUIRE(rank.communication.size() == 2);
  require_us(rank.communication[0].begin_us, 100);
  require_us(rank.communication[0].end_us, 220);
  require_us(rank.communication[1].begin_us, 300);
  REQUIRE(rank.sent.messages == 4);
  require_us(rank.sent.bytes, 3.0 * kMib);
}

TEST_CASE("ranks end when it was computed by hand that they do") {
  const auto one_after_the_other = [] {
    const Handle first = all_reduce(kMib);
    const Handle second = all_reduce(kMib);
    wait(second);
    wait(first);
  };
  const auto when_the_last_is_there = [] {
    compute(my_rank() == 1 ? 500 : 100);
    wait(barrier());
  };
  const std::vector<float> megabyte(kMib / sizeof(float));
  const auto both_directions_at_once = [&] {
    std::vector<float> received(megabyte.size());
    compute(my_rank() == 1 ? 70 : 0);
    const Handle sent = send(1 - my_rank(), megabyte);
    wait(recv(1 - my_rank(), received));
    wait(sent);
  };
  const std::vector<std::tuple<std::function<void()>, int, double, double>> cases = {
      {one_after_the_other, 2, 240, 240},
      {when_the_last_is_there, 3, 500 + 40, 440},
      {both_directions_at_once, 2, 70 + 110, 180}};
  for (const auto& [program, nprocs, end_us, most_waited_us] : cases) {
    const Simulation simulation = run(program, nprocs);
    for (const RankRecord& rank : simulation.ranks) {
      require_us(rank.end_us, end_us);
    }
    require_us(waited_us.of(simulation), most_waited_us);
  }
}

TEST_CASE("numbers are moved as they were when send() was called") {
  const Simulation simulation = run(
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
      3);
  REQUIRE(simulation.complaints.empty());
}

TEST_CASE("a deadlock, and what a program must not do, ends with a line that says what") {
  const auto on_rank_1 = [](const std::function<void()>& what) {
    return [what] { my_rank() == 1 ? what() : wait(barrier()); };
  };
  const auto condition = [] {
    compute(100);
    if (my_rank() == 0) {
      wait(broadcast(8));
    }
    wait(all_reduce(16));
  };
  std::vector<float> values(2);
  const auto another_order = [] {
    const Handle first = my_rank() == 0 ? all_reduce(4) : barrier();
    wait(my_rank() == 0 ? barrier() : all_reduce(4));
    wait(first);
  };
  const auto other_size = [&] {
    const std::span<float> both = values;
    wait(my_rank() == 0 ? send(1, both) : recv(0, both.first(1)));
  };
  const auto twice = [] {
    const Handle handle = barrier();
    wait(handle);
    wait(handle);
  };
  for (const auto& [program, said] : std::vector<std::pair<std::function<void()>, std::string>>{
           {condition,
            "deadlock at 100 us: rank 0 waits for broadcast with root 0 of 8 bytes; rank 1 waits "
            "for all_reduce of 16 bytes"},
           {[] { wait(all_reduce(my_rank() == 1 ? 4 : 8)); },
            "rank 0 waits for all_reduce of 8 bytes; rank 1 waits for all_reduce of 4 bytes"},
           {on_rank_1([] {}), "rank 0 waits for barrier of 0 bytes; rank 1 returned"},
           {another_order,
            "rank 0 waits for barrier of 0 bytes behind its all_reduce of 4 bytes; rank 1 waits"},
           {other_size, "rank 0 sends 8 bytes to rank 1, which receives 4"},
           {twice, "wait: got the handle of barrier of 0 bytes twice on rank"},
           {on_rank_1([] { compute(std::nan("")); }), "compute: got nan us on rank 1"},
           {on_rank_1([] { wait(all_reduce(-4)); }), "rank 1: got all_reduce of -4 bytes"},
           {on_rank_1([&] { wait(send(1, values)); }), "and another rank of 0 to 1"}}) {
    CHECK(contains(message_of([&] { run(program, 2); }), said));
  }
  REQUIRE_THROWS_AS(my_rank(), std::logic_error);
  const auto asks_late = [&] { condition(), parameter("late", 1); };
  REQUIRE(contains(run_ranks(asks_late, 2, kNetwork, {{"late", 2}}).deadlock, "deadlock at 100"));
}

TEST_CASE("a check that fails and a result that nobody waits for are mistakes") {
  const Simulation simulation = run(
      [] {
        check(my_rank() == 0, "is rank 0");
        const Handle sum = all_reduce(8);
        if (my_rank() == 0) {
          wait(sum);
        }
      },
      2);
  REQUIRE(simulation.complaints ==
          std::vector<std::string>{"rank 1: check failed: is rank 0",
                                   "rank 1 never waited for its all_reduce of 8 bytes"});
}

// docs/learn/simulator.md has their whole drawings, and a program with a deadlock.
TEST_CASE("the programs draw, decide by their targets and refuse a wrong command in one line") {
  const std::string bin = DDP_BIN_DIR "/";
  for (const char* name :
       {"sim_after_backward", "sim_buckets", "sim_late_rank", "sim_ring_all_reduce"}) {
    INFO(name);
    const auto result = run_program({bin + name});
    REQUIRE(result.exit_code == 0);
    REQUIRE(contains(result.out, ": met, "));
    REQUIRE_FALSE(contains(result.out, "missed"));
    REQUIRE(result.out == run_program({bin + name}).out);
  }
  const auto lane = [](int before, const std::string& drawn) {
    return "communication |" + std::string(static_cast<std::size_t>(before), ' ') + drawn;
  };
  const std::string rounds = "M-----M-----M-----M-----M-----M-----" + std::string(36, ' ');
  for (const auto& [command, exit_code, said] :
       std::vector<std::tuple<std::string, int, std::string>>{
           {"sim_late_rank", 0, lane(61, "A------    |")},
           {"sim_after_backward", 0, lane(56, "AAA--AA----A    |")},
           {"sim_ring_all_reduce", 0, "\n. waiting, M message\n"},
           {"sim_ring_all_reduce --width-us 420", 0, lane(0, rounds + "|\n")},
           {"sim_buckets", 0, " ranks, alpha 10 us, beta 100 us/MiB, bucket_mib 1\n"},
           {"sim_buckets --set bucket_mib=0.000001", 0, "2243.3       193.3        12     2678824"},
           {"sim_buckets --set bucket_mib=0.01", 0, "2223.3       173.3         6     2678824"},
           {"sim_buckets --set bucket_mib=1000", 0, "2325.5       275.5         2     2678824"},
           {"sim_buckets --set bucket_mib=1000", 0, "target messages == 4: not checked, 2"},
           {"sim_buckets --alpha-us 20", 0, "target step_us <= 2230: not checked, 2243.3"},
           {"sim_buckets --beta-us-per-mib 200", 0, "target step_us <= 2230: not checked, 2376.6"},
           {"sim_ring_all_reduce --nprocs 1", 0, "target messages == 6: not checked, 0"},
           {"sim_ring_all_reduce --nprocs 7", 0, "target messages == 6: not checked, 12"},
           {"sim_buckets --set bucket=1", 2, "--set: got \"bucket\", expected one of: bucket_mib"},
           {"sim_buckets --set bucket_mib", 2, "expected NAME=NUMBER"},
           {"sim_buckets --alpha-us nan", 2, "expected a finite number > 0"},
           {"sim_buckets --width-us 2223", 2, "--width-us: got 2223, expected 2224 at least"},
           {"sim_buckets --nprocs 65 --html lanes.html", 2, "--html: got --nprocs 65"},
           {"sim_buckets --html /nowhere/lanes.html", 2, "/nowhere"}}) {
    const auto result = run_program(words(bin + command));
    INFO(command << "\n" << result.out << result.err);
    CHECK(result.exit_code == exit_code);
    CHECK(contains(exit_code == 0 ? result.out : result.err, said));
    CHECK(std::ranges::count(result.err, '\n') == (exit_code == 0 ? 0 : 1));
  }
}

TEST_CASE("a missed target fails the program, and a page is written for any names and errors") {
  const ddp::ScratchFolder folder("ddp-simulator");
  const std::string file = folder.path() + "/page.html";
  std::vector<std::string> words = {"program", "--html", file};
  std::vector<char*> argv = {words[0].data(), words[1].data(), words[2].data()};
  const auto rank = [] {
    compute(parameter("us", 3), "</script>");
    if (my_rank() == 0 && world_size() > 2) {
      throw std::runtime_error("fails with many");
    }
  };
  REQUIRE(simulate(3, argv.data(), rank, {step_us <= 2}) == 1);
  const std::string page = ddp::read_text(file);
  for (const char* part : {"\\u003c/script>", "fails with many", "\"us\":[1.5,3.0,6.0]"}) {
    CHECK(contains(page, part));
  }
}
