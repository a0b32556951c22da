// The simulator of ranks: times that were computed by hand, deadlocks, mistakes, and its programs.
#include "simulator/simulator.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace {

using namespace ddp::sim;
using ddp::test::contains;
using ddp::test::run_program;

constexpr int64_t kMib = 1 << 20;
const Network kNetwork{.alpha_us = 10, .beta_us_per_mib = 100};

/// Equal but for the rounding of a few additions.
void require_us(double us, double expected) {
  REQUIRE(us == Approx(expected).epsilon(1e-12).margin(1e-9));
}

Simulation run(const std::function<void()>& rank, int nprocs) {
  return run_ranks(rank, nprocs, kNetwork);
}

std::string error_of(const std::function<void()>& rank, int nprocs) {
  try {
    run(rank, nprocs);
  } catch (const ddp::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("collectives cost what their formulas say") {
  struct Case {
    Kind kind;
    double us;
  };
  for (const Case& one : std::vector<Case>{{Kind::kAllReduce, 6 * 10 + 1.5 * 100},
                                           {Kind::kReduceScatter, 3 * 10 + 0.75 * 100},
                                           {Kind::kAllGather, 3 * 10 + 3 * 100},
                                           {Kind::kBroadcast, 3 * 10 + 100},
                                           {Kind::kBarrier, 6 * 10}}) {
    INFO(to_string(one.kind));
    const int64_t bytes = one.kind == Kind::kBarrier ? 0 : kMib;
    require_us(kNetwork.us(traffic(one.kind, bytes, 4)), one.us);
    require_us(kNetwork.us(traffic(one.kind, bytes, 1)), 0);
  }
  require_us(kNetwork.us(traffic(Kind::kSend, kMib / 2, 4)), 60);
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
  require_us(rank.waited_us(), 220);  // for the second alone
  REQUIRE(rank.communication.size() == 2);
  require_us(rank.communication[0].begin_us, 100);
  require_us(rank.communication[0].end_us, 220);
  require_us(rank.communication[1].begin_us, 300);
  REQUIRE(rank.sent.messages == 4);
  require_us(rank.sent.bytes, 3.0 * kMib);
}

TEST_CASE("one rank's communication goes one after the other") {
  const Simulation simulation = run(
      [] {
        const Handle first = all_reduce(kMib);
        const Handle second = all_reduce(kMib);
        wait(second);
        wait(first);
      },
      2);
  require_us(step_us.of(simulation), 240);
}

TEST_CASE("a collective begins when its last rank is there") {
  const Simulation simulation = run(
      [] {
        compute(my_rank() == 1 ? 500 : 100);
        wait(barrier());
      },
      3);
  for (const RankRecord& rank : simulation.ranks) {
    require_us(rank.end_us, 500 + 40);
  }
  require_us(simulation.ranks[0].waited_us(), 440);
  require_us(simulation.ranks[1].waited_us(), 40);
  require_us(waited_us.of(simulation), 440);
}

TEST_CASE("a message begins when both ranks have called, and both directions go at once") {
  const std::vector<float> megabyte(kMib / sizeof(float));
  const Simulation simulation = run(
      [&] {
        std::vector<float> received(megabyte.size());
        compute(my_rank() == 1 ? 70 : 0);
        const Handle sent = send(1 - my_rank(), megabyte);
        wait(recv(1 - my_rank(), received));
        wait(sent);
      },
      2);
  for (const RankRecord& rank : simulation.ranks) {
    require_us(rank.end_us, 70 + 110);
    REQUIRE(rank.sent.messages == 1);
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
  const Simulation wrong = run([] { check(my_rank() == 0, "is rank 0"); }, 2);
  REQUIRE(wrong.complaints == std::vector<std::string>{"rank 1: not so: is rank 0"});
}

TEST_CASE("ranks that wait for one another for ever are named, and what for") {
  const auto condition = [] {
    compute(100);
    if (my_rank() == 0) {
      wait(broadcast(8));
    }
    wait(all_reduce(16));
  };
  REQUIRE(error_of(condition, 2) ==
          "deadlock at 100 us: rank 0 waits for broadcast with root 0 of 8 bytes; rank 1 waits for "
          "all_reduce of 16 bytes");
  REQUIRE(error_of([] { wait(all_reduce(my_rank() == 1 ? 4 : 8)); }, 2) ==
          "deadlock at 0 us: rank 0 waits for all_reduce of 8 bytes; rank 1 waits for all_reduce "
          "of 4 bytes");
  const auto one_returns = [] {
    if (my_rank() == 0) {
      wait(barrier());
    }
  };
  REQUIRE(error_of(one_returns, 2) ==
          "deadlock at 0 us: rank 0 waits for barrier of 0 bytes; rank 1 returned");
  const auto all_send_first = [] {
    std::vector<float> value(1);
    wait(send(1 - my_rank(), value));
    wait(recv(1 - my_rank(), value));
  };
  REQUIRE(error_of(all_send_first, 2) ==
          "deadlock at 0 us: rank 0 waits for send to rank 1 of 4 bytes; rank 1 waits for send to "
          "rank 0 of 4 bytes");
  const auto another_order = [] {
    const Handle first = my_rank() == 0 ? all_reduce(4) : barrier();
    wait(my_rank() == 0 ? barrier() : all_reduce(4));
    wait(first);
  };
  REQUIRE(error_of(another_order, 2) ==
          "deadlock at 0 us: rank 0 waits for barrier of 0 bytes behind its all_reduce of 4 bytes; "
          "rank 1 waits for all_reduce of 4 bytes behind its barrier of 0 bytes");
}

TEST_CASE("what a program must not do is refused, on whatever rank") {
  const auto on_rank_1 = [](const std::function<void()>& what) {
    return [what] {
      wait(barrier());
      if (my_rank() == 1) {
        what();
      }
      wait(barrier());
    };
  };
  std::vector<float> values(2);
  for (const auto& [what, said] : std::vector<std::pair<std::function<void()>, std::string>>{
           {[] { compute(-1); }, "compute: got -1 us on rank 1"},
           {[] { compute(std::nan("")); }, "compute: got nan us on rank 1"},
           {[] { wait(all_reduce(-4)); }, "rank 1: got all_reduce of -4 bytes"},
           {[] { wait(broadcast(4, 2)); }, "expected 0 bytes or more and a root from 0 to 1"},
           {[&] { wait(send(1, values)); }, "and another rank of 0 to 1"}}) {
    REQUIRE(contains(error_of(on_rank_1(what), 2), said));
  }
  const auto twice = [] {
    const Handle handle = barrier();
    wait(handle);
    wait(handle);
  };
  REQUIRE(error_of(twice, 1) == "wait: got the handle of barrier of 0 bytes twice on rank 0");
  const auto other_size = [&] {
    const std::span<float> both = values;
    wait(my_rank() == 0 ? send(1, both) : recv(0, both.first(1)));
  };
  REQUIRE(error_of(other_size, 2) == "rank 0 sends 8 bytes to rank 1, which receives 4");
  REQUIRE_THROWS_AS(my_rank(), std::logic_error);
}

TEST_CASE("a result that nobody waits for is a mistake") {
  const Simulation simulation = run(
      [] {
        const Handle sum = all_reduce(8);
        if (my_rank() == 0) {
          wait(sum);
        }
      },
      2);
  REQUIRE(simulation.complaints ==
          std::vector<std::string>{"rank 1 never waited for its all_reduce of 8 bytes"});
}

TEST_CASE("targets compare") {
  const Simulation simulation = run([] { compute(100); }, 1);
  REQUIRE((step_us <= 100).is_met(simulation));
  REQUIRE_FALSE((step_us <= 99.999).is_met(simulation));
  REQUIRE((step_us >= 100).is_met(simulation));
  REQUIRE_FALSE((step_us >= 100.001).is_met(simulation));
  REQUIRE((step_us == 100).is_met(simulation));
  REQUIRE_FALSE((step_us == 100.001).is_met(simulation));
  REQUIRE((step_us <= 99.5).text() == "step_us <= 99.5");
}

TEST_CASE("the programs draw, decide by their targets and refuse a wrong command in one line") {
  const std::string bin = DDP_BIN_DIR;
  for (const char* name : {"sim_after_backward", "sim_buckets", "sim_late_rank"}) {
    INFO(name);
    const auto result = run_program({bin + "/" + name});
    REQUIRE(result.exit_code == 0);
    REQUIRE(contains(result.out, ": met, "));
    REQUIRE_FALSE(contains(result.out, "missed"));
    REQUIRE(result.out == run_program({bin + "/" + name}).out);
  }
  const auto late = run_program({bin + "/sim_late_rank"});
  REQUIRE(contains(late.out, "rank 1    compute       |" + std::string(61, 'b') + ".......oooo|"));
  REQUIRE(contains(late.out, "communication |" + std::string(61, ' ') + "AAAAAAA    |"));
  const auto missed = run_program({bin + "/sim_buckets", "--alpha-us", "20"});
  REQUIRE(missed.exit_code == 1);
  REQUIRE(contains(missed.out, "target step_us <= 2230: missed, 2243.3"));
  const auto deadlock = run_program({bin + "/sim_deadlock"});
  REQUIRE(deadlock.exit_code == 1);
  REQUIRE(deadlock.out.empty());
  REQUIRE(contains(deadlock.err, "sim_deadlock: error: deadlock at 500 us: rank 0 waits for "));
  for (const auto& [arguments, said] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--set", "bucket=1"}, "--set: got \"bucket\", expected one of: first_bucket_mib"},
           {{"--set", "first_bucket_mib"}, "expected NAME=NUMBER"},
           {{"--set", "first_bucket_mib=-1"}, "expected a finite number > 0"},
           {{"--alpha-us", "nan"}, "expected a finite number > 0"},
           {{"--nprocs", "0"}, "expected an integer from 1 to 1024"}}) {
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
