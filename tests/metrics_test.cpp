// What bench reads from --metrics: the job's steps and what they consist of, warm-up, and what
// surrounded a launch.
#include "bench/run/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "bench/run/measurement.hpp"
#include "bench/run/processor_use.hpp"
#include "bench/run/results.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/ranks.hpp"

namespace {

using namespace ddp::bench;
using ddp::test::Ranks;

double sum_of_steps(const StageMetrics& metrics) {
  return sum(step_times_ms(metrics.steps));
}

}  // namespace

TEST_CASE("the job's steps add up to the wall clock where the longest of each step do not",
          "[metrics]") {
  Ranks ranks(2);
  const double begin_ms = ranks.now_ms();
  for (std::size_t step = 0; step < 200; ++step) {
    // Jitter: now one rank, now the other is held up after the all-reduce.
    ranks.come_out_late(step % 2, 0.5);
    ranks.step({0.9, 0.9}, 0.1);
  }
  const double wall_ms = ranks.now_ms() - begin_ms;
  const StageMetrics metrics = ranks.read();
  const std::vector<std::vector<double>>& of_rank = metrics.step_ms_of_rank;
  double longest_ms = 0;
  for (std::size_t step = 0; step < 200; ++step) {
    longest_ms += std::max(of_rank[0][step], of_rank[1][step]);
  }
  REQUIRE(longest_ms > 1.2 * wall_ms);
  CHECK(std::abs(sum_of_steps(metrics) / wall_ms - 1) < 1e-9);
  // Without a common clock: also when the hosts are several, or a peer does not tell.
  CHECK(std::abs(sum_of_steps(ranks.read(/*one_host=*/false)) / wall_ms - 1) < 0.01);
  CHECK(std::abs(sum_of_steps(ranks.read(true, "end_ms")) / wall_ms - 1) < 0.01);
  CHECK(of_rank[1][2] == Approx(1.0));  // it came late out of the one before
  CHECK(of_rank[0][2] == Approx(2.0));
}

TEST_CASE("what lies between steps is in no step", "[metrics]") {
  Ranks ranks(3);
  for (int step = 0; step < 10; ++step) {
    if (step % 5 == 0) {
      ranks.pause(100);
    }
    ranks.step({1, 2, 3}, 1);
  }
  const StageMetrics metrics = ranks.read();
  for (const Step& step : metrics.steps) {
    CHECK(step.step_ms == Approx(4));
  }
  CHECK(metrics.steps.size() == 10);
}

TEST_CASE("a rank that comes late is imbalance, not communication", "[metrics]") {
  Ranks ranks(2);
  ranks.step({1.0, 1.0}, 0.2);
  ranks.step({1.0, 3.0}, 0.2);
  const StageMetrics metrics = ranks.read();
  const Step& even = metrics.steps[0];
  CHECK(even.phase_ms[kExposedComm] == Approx(0.2));
  CHECK(std::abs(even.phase_ms[kImbalance]) < 1e-9);
  const Step& uneven = metrics.steps[1];
  CHECK(uneven.step_ms == Approx(3.2));
  CHECK(uneven.phase_ms[kExposedComm] == Approx(0.2));
  CHECK(uneven.phase_ms[kImbalance] == Approx(1.0));  // two of rank 0, none of rank 1
  CHECK(uneven.phase_ms[kForward] == Approx(0.3 * 2));
  for (const Step& step : metrics.steps) {
    double parts_ms = 0;
    for (const double phase_ms : step.phase_ms) {
      parts_ms += phase_ms;
    }
    CHECK(parts_ms == Approx(step.step_ms));
  }
}

TEST_CASE("a wait that is not known is neither communication nor imbalance", "[metrics]") {
  const ddp::ScratchFolder folder("ddp-metrics-test");
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path) << R"({"rank":0,"step":0,"step_ms":2,"data_ms":1,"forward_ms":1,)"
                         R"("backward_ms":1,"exposed_comm_ms":null,"optimizer_ms":1})"
                         "\n"
                         R"({"rank":1,"step":0,"step_ms":4,"data_ms":1,"forward_ms":1,)"
                         R"("backward_ms":1,"exposed_comm_ms":0,"optimizer_ms":1})"
                         "\n"
                         R"({"summary":{"warmup_steps":0,"epochs":1,"global_batch":1,"moved":1}})"
                         "\n";
  const Step step = read_metrics(path, 2, true).steps.at(0);
  CHECK(step.step_ms == 3);
  CHECK(std::isnan(step.end_ms));
  CHECK(std::isnan(step.phase_ms[kExposedComm]));
  CHECK(std::isnan(step.phase_ms[kImbalance]));
  CHECK(step.phase_ms[kForward] == 1);
}

TEST_CASE("one process waits for nobody", "[metrics]") {
  Ranks ranks(1);
  ranks.step({1.0}, 0);
  ranks.step({2.0}, 0);
  const StageMetrics metrics = ranks.read();
  CHECK(metrics.steps[1].step_ms == Approx(2));
  CHECK(metrics.steps[1].phase_ms[kExposedComm] == Approx(0).margin(1e-9));
  CHECK(metrics.steps[1].phase_ms[kImbalance] == 0);
}

TEST_CASE("steps that do not follow each other are refused", "[metrics]") {
  Ranks ranks(1);
  ranks.step({1.0}, 0);
  ranks.pause(-1.5);
  ranks.step({1.0}, 0);
  CHECK_THROWS_WITH(ranks.read(),
                    Catch::Contains("step 1 of rank 0 did not end after the one before"));
}

TEST_CASE("warm-up is what the stage says and 50 ms, and leaves what is to be timed", "[metrics]") {
  Ranks ranks(2);
  for (int step = 0; step < 100; ++step) {
    ranks.step({step < 5 ? 6.0 : 0.9, 0.9}, 0.1);
  }
  // 5 of 6.1 ms and 20 of 1 ms are more than 50 ms.
  CHECK(ranks.read(true, "", 10, 40).warmup_steps == 25);
  CHECK(ranks.read(true, "", 30, 40).warmup_steps == 30);
  CHECK(ranks.read(true, "", 10, 80).warmup_steps == 20);  // as many as can be spared
  CHECK(ranks.read(true, "", 10, 0).warmup_steps == 25);
  // No length was chosen for this one: half of it stays.
  Ranks few(1);
  for (int step = 0; step < 30; ++step) {
    few.step({1.0}, 0);
  }
  CHECK(few.read(true, "", 10, 0).warmup_steps == 15);
  CHECK(few.read(true, "", 40, 0).timed_steps().empty());
}

TEST_CASE("runs are as long as their warm-up and the timed steps", "[metrics]") {
  const auto choose = [](double parity_step_ms, Settings settings) {
    Measurements measurements;
    Result& result = measurements.results.emplace_back();
    result.parity_step_ms = parity_step_ms;
    result.warmup_steps = 20;
    result.steps_per_epoch = 64;
    choose_lengths(settings, 0, measurements);
    return result.length;
  };
  Settings asked;
  asked.steps = 100;
  const RunLength fast = choose(0.005, asked);
  CHECK(fast.timed_steps == 100);
  CHECK(fast.epochs * 64 >= 100 + 10'000);
  const RunLength slow = choose(100, asked);
  CHECK(slow.epochs == 2);
  const RunLength chosen = choose(0.005, {});
  CHECK(chosen.timed_steps == 4000);
  CHECK(chosen.epochs * 64 >= 4000 + 10'000);
}

TEST_CASE("samples per second by the wall clock of the timed steps", "[metrics]") {
  Ranks ranks(2);
  for (int step = 0; step < 40; ++step) {
    if (step == 20) {
      ranks.pause(1000);
    }
    ranks.step({0.9, step == 30 ? 100.9 : 0.9}, 0.1);
  }
  const StageMetrics metrics = ranks.read(true, "", 10, 30);
  CHECK(metrics.timed_steps().size() == 30);
  CHECK(wall_samples_per_second(64, metrics.timed_steps()).value() == Approx(30 * 64 / 0.130));
  CHECK(!wall_samples_per_second(64, {}));
  // The first step ended at 1e12 ms.
  const Interval timed = metrics.timed_unix_ms().value();
  CHECK(timed.low == Approx(1e12 + 9).epsilon(1e-15));
  CHECK(timed.high - timed.low == Approx(1130));
  CHECK(!ranks.read(false, "", 10, 30).timed_unix_ms());
  CHECK(metrics.minor_faults == std::vector<double>{1, 2});
  CHECK(metrics.involuntary_switches.empty());  // a peer may not know
}

TEST_CASE("phases whose sum is not the step are made to add up to it", "[metrics]") {
  Result result;
  result.parity.ok = true;
  StageRun& run = result.repetitions.emplace_back().emplace();
  Step step;
  step.step_ms = 2;
  step.phase_ms = {1, 1, 1, 1, 0, 0};
  run.metrics.steps = {step, step, step, step, step};
  const auto phases_ms = [&] {
    return make_report({.results = {result}, .micro = {}}).runs.at(0).phases_ms;
  };
  CHECK(phases_ms()[kForward] == 0.5);
  CHECK(phases_ms()[kImbalance] == 0);
  // What is known is not stretched over what is not.
  for (Step& each : run.metrics.steps) {
    each.phase_ms[kExposedComm] = each.phase_ms[kImbalance] = std::nan("");
  }
  CHECK(phases_ms()[kForward] == 1);
  CHECK(!phases_ms()[kImbalance]);
}

TEST_CASE("power is integrated between samples", "[metrics]") {
  CHECK(!mean_power_w({}, {0, 1}));
  CHECK(mean_power_w({{500, 100}}, {1000, 1010}) == 100.0);
  const std::vector<GpuPower> samples = {{0, 100}, {500, 200}, {1000, 400}, {1500, 400}};
  CHECK(mean_power_w(samples, {1000, 1500}) == 400.0);
  CHECK(mean_power_w(samples, {250, 250.5}) == Approx(150.05));  // shorter than what lies between
  CHECK(mean_power_w(samples, {0, 1000}) == Approx((150 + 300) / 2.0));
  CHECK(mean_power_w(samples, {1500, 9000}) == 400.0);
  CHECK(!mean_power_w(samples, {7, 7}));
}

TEST_CASE("others' use of the processors is what /proc/stat has besides ours", "[metrics]") {
  const ddp::ScratchFolder folder("ddp-metrics-test");
  const std::string path = folder.path() + "/stat";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return processor_times(path);
  };
  // 10 ms each: user, nice, system, idle, iowait, irq, softirq, steal, and guest, a part of user.
  std::optional<ProcessorTimes> begin = read("cpu  100 100 100 1000 0 10 10 40 50 0\ncpu0 1\n");
  std::optional<ProcessorTimes> end = read("cpu  160 110 120 1200 100 15 15 50 90 0\ncpu0 1\n");
  REQUIRE(begin);
  REQUIRE(end);
  begin->own_s = 2;
  end->own_s = 2.5;
  const ProcessorUse use = use_between(begin, end);
  // 410 ticks passed. 100 of them were busy, of which 0.5 s are ours.
  CHECK(use.others_share.value() == Approx(50 / 410.0));
  CHECK(use.stolen_share.value() == Approx(10 / 410.0));
  end->own_s = 4;  // more than the kernel has counted by ticks
  CHECK(use_between(begin, end).others_share == 0.0);
  CHECK(!use_between(begin, begin).others_share);
  CHECK(!use_between(begin, std::nullopt).stolen_share);
  CHECK(!read("intr 1 2 3\n"));
  CHECK(!read("cpu 1 2 3\n"));
  CHECK(!processor_times(folder.path() + "/none"));
}
