// What bench concludes from measurements: verdicts, predictions, floors, slow ranks.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bench/report/analysis.hpp"
#include "bench/report/catalog.hpp"
#include "bench/report/conclusions.hpp"
#include "bench/report/record.hpp"
#include "bench/report/verdict.hpp"
#include "bench/run/results.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"

namespace {

using namespace ddp::bench;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Every block's run has steps around `median_ms[block]`.
Result make_result(const std::string& program, int world_size, const std::vector<double>& median_ms,
                   Role role = Role::kStage) {
  Result result;
  Configuration& configuration = result.configuration;
  configuration.workload = known_workloads().front();
  const auto known = std::ranges::find(known_programs(), program, &StageProgram::name);
  if (known != known_programs().end()) {
    configuration.program = *known;
  }
  if (role == Role::kPeer) {
    configuration.program = {program, program, "tuned", Start::kSpawn};
  }
  configuration.role = role;
  configuration.world_size = world_size;
  configuration.global_batch = 32 * world_size;
  if (configuration.program.start == Start::kSpawn) {
    configuration.launcher = "spawn";
    configuration.backend = "gloo";
  }
  result.parity.ok = true;
  for (const double block_ms : median_ms) {
    StageRun repetition;
    for (const double share : {0.98, 0.99, 1.0, 1.01, 1.02}) {
      Step step;
      step.step_ms = block_ms * share;
      step.phase_ms = {0.1 * step.step_ms,  0.2 * step.step_ms,  0.3 * step.step_ms,
                       0.25 * step.step_ms, 0.05 * step.step_ms, 0.1 * step.step_ms};
      repetition.metrics.steps.push_back(step);
    }
    result.repetitions.emplace_back(repetition);
  }
  return result;
}

std::vector<double> six_times(double value) {
  return std::vector<double>(6, value);
}

const Comparison& comparison_of(const Report& report, const std::string& kind,
                                const std::string& a) {
  const Comparison* const found = find_first(report.comparisons, [&](const Comparison& comparison) {
    return comparison.kind == kind && comparison.a == a;
  });
  REQUIRE(found != nullptr);
  return *found;
}

const std::string kOneProcess = "T/weak/01_single_gpu/ranks:1";
const std::string kTwoRanks = "T/weak/03_ddp_spawn/spawn/gloo/ranks:2";

/// One process, two ranks that take `ratio` times as long, and a control of each.
Measurements measure(double ratio, double control) {
  const auto times = [](double factor, std::vector<double> values) {
    std::ranges::for_each(values, [&](double& value) { value *= factor; });
    return values;
  };
  const std::vector<double> one_ms = {1.0, 1.1, 0.9, 1.05, 0.95, 1.02};
  const std::vector<double> two_ms = times(ratio, {1.01, 1.09, 0.91, 1.04, 0.96, 1.02});
  return {
      .results = {make_result("01_single_gpu", 1, one_ms), make_result("03_ddp_spawn", 2, two_ms),
                  make_result("01_single_gpu", 1, times(control, one_ms), Role::kControl),
                  make_result("03_ddp_spawn", 2, two_ms, Role::kControl)},
      .micro = {}};
}

Report report_of(const std::vector<Result>& results) {
  return make_report({.results = results, .micro = {}});
}

std::string overall(const Report& report) {
  std::string text;
  for (const Conclusion& conclusion : conclude(report, {})) {
    text += conclusion.text + "\n";
  }
  return text;
}

TEST_CASE("same is what lies within 3 % of even, interval and all", "[analysis]") {
  const auto verdict = [](double low, double high, double even) {
    return judge(Interval{low, high}, even);
  };
  CHECK(verdict(0.98, 1.02, 1) == "same");
  CHECK(verdict(1.01, 1.02, 1) == "same");
  CHECK(verdict(1.95, 2.05, 2) == "same");
  CHECK(verdict(0.5, 9.98, 1) == std::nullopt);
  CHECK(verdict(0.98, 1.04, 1) == std::nullopt);
  CHECK(verdict(0.96, 1.0, 1) == std::nullopt);
  CHECK(verdict(0.96, 0.99, 1) == "faster");
  CHECK(verdict(1.01, 1.04, 1) == "slower");
  CHECK(verdict(1.01, 1.04, 2) == "faster");
  CHECK(verdict(kNan, kNan, 1) == std::nullopt);
  CHECK(verdict(1, kNan, 1) == std::nullopt);
  CHECK(judge(std::nullopt, 1) == std::nullopt);
}

TEST_CASE("a verdict is by samples per second, and only if the controls agree", "[analysis]") {
  const auto verdict = [&](double ratio, double control) {
    const Report report = make_report(measure(ratio, control));
    return comparison_of(report, "baseline", kTwoRanks).verdict;
  };
  CHECK(verdict(1.2, 1.0) == "faster");  // 1.2x the time for 2x the samples
  CHECK(verdict(2.5, 1.0) == "slower");
  CHECK(verdict(2.0, 1.0) == "same");
  CHECK(verdict(1.2, 1.02) == "faster");
  CHECK(verdict(1.2, 1.04) == std::nullopt);
  CHECK(verdict(1.2, 0.96) == std::nullopt);
  const Report report = make_report(measure(1.2, 1.04));
  const Comparison& control = comparison_of(report, "control", kOneProcess + "/control");
  CHECK(std::abs(*control.ratio_median - 1.04) < 1e-9);
  CHECK(control.verdict == "slower");
  CHECK(overall(report).find("than 3 % the document has no verdict") != std::string::npos);
  CHECK(overall(make_report(measure(1.2, 1.0))).find("so the verdicts stand") != std::string::npos);
}

TEST_CASE("a verdict needs a control of its kind that was measured", "[analysis]") {
  Measurements measurements = measure(1.2, 1.0);
  std::vector<Result>& results = measurements.results;
  const auto verdict = [&] {
    const Report report = make_report(measurements);
    return comparison_of(report, "baseline", kTwoRanks).verdict;
  };
  CHECK(verdict() == "faster");
  SECTION("none of several processes") {
    results.pop_back();
  }
  SECTION("none of one process") {
    results.erase(results.begin() + 2);
  }
  SECTION("one that failed") {
    results.back().error = "exit code 1";
  }
  SECTION("one that was never run") {
    results.back().repetitions.assign(6, std::nullopt);
  }
  SECTION("one with too few repetitions for an interval") {
    results.back().repetitions.back().reset();
  }
  SECTION("one of another workload") {
    results.back().configuration.workload = known_workloads().back();
  }
  SECTION("none at all") {
    results.resize(2);
  }
  CHECK(verdict() == std::nullopt);
  CHECK(overall(make_report(measurements)).find("verdicts stand") == std::string::npos);
  CHECK(overall(make_report(measurements)).find("No verdict without an A/A control") !=
        std::string::npos);
}

TEST_CASE("a control whose interval reaches beyond 3 % says nothing, wherever its ratio lies",
          "[analysis]") {
  Measurements measurements = measure(1.2, 1.0);
  const auto verdict = [&] {
    return comparison_of(make_report(measurements), "baseline", kTwoRanks).verdict;
  };
  std::vector<std::optional<StageRun>>& control = measurements.results[3].repetitions;
  const auto slow_down = [&](std::size_t block, double factor) {
    for (Step& step : control[block]->metrics.steps) {
      step.step_ms *= factor;
    }
  };
  slow_down(0, 1.025);
  CHECK(verdict() == "faster");
  slow_down(1, 0.8);
  slow_down(2, 1.25);
  CHECK(verdict() == std::nullopt);
  const Comparison comparison =
      comparison_of(make_report(measurements), "control", kTwoRanks + "/control");
  CHECK(std::abs(*comparison.ratio_median - 1) < 0.03);
  CHECK(overall(make_report(measurements)).find("verdicts stand") == std::string::npos);
}

TEST_CASE("one estimate of a ratio is used for steps, speed-up and efficiency", "[analysis]") {
  const Report report = make_report(measure(1.25, 1.0));
  const double ratio = *comparison_of(report, "baseline", kTwoRanks).ratio_median;
  const Run& run = *report.find(kTwoRanks);
  CHECK(*run.relative_speedup == Approx(2 / ratio));
  CHECK(*run.efficiency == Approx(1 / ratio));
  CHECK(*report.find(kOneProcess)->relative_speedup == 1);
}

TEST_CASE("launches that are slow as a whole are counted, and the clock's throughput sees them",
          "[analysis]") {
  const Report report = report_of({make_result("03_ddp_spawn", 2, {1, 1.49, 1, 1.6, 1, 2, 1})});
  const Run& run = report.runs.at(0);
  CHECK(run.slow_launches.k == 2);
  CHECK(run.slow_launches.n == 7);
  CHECK(*run.samples_per_second == Approx(64 / *run.step_ms.median * 1e3));
  CHECK(*run.wall_samples_per_second == Approx(64 * 7 / 9.09 * 1e3));
  CHECK(*run.repetitions.at(5)->wall_samples_per_second == Approx(64 / 2.0 * 1e3));
  CHECK(*run.gflops == Approx(2 * 2 * 64 * 20 / *run.step_ms.median / 1e6));
  CHECK(run.parameters == 21);
}

TEST_CASE("what communication adds is paired by block, and null where it may be 0", "[analysis]") {
  const std::vector<double> base_ms = {1.0, 2.0, 1.0, 3.0, 1.0, 1.5, 1.0};
  const auto communication = [&](const std::vector<double>& added_ms, double alone_ms) {
    std::vector<double> step_ms = base_ms;
    std::ranges::transform(step_ms, added_ms, step_ms.begin(), std::plus());
    Result result = make_result("03_ddp_spawn", 2, step_ms);
    result.no_comm_medians_ms = base_ms;
    result.alone_ms = alone_ms;
    return report_of({result}).runs.at(0).comm;
  };
  // The blocks differ threefold, what is added by a hundredth.
  const Communication added = communication({0.2, 0.21, 0.19, 0.2, 0.21, 0.2, 0.19}, 0.4);
  CHECK(*added.exposed_by_difference_ms == Approx(0.2).margin(1e-6));
  CHECK(added.exposed_by_difference_ci95_ms->low == Approx(0.19).margin(0.006));
  CHECK(added.exposed_by_difference_ci95_ms->high == Approx(0.21).margin(0.006));
  CHECK(*added.hidden_share == Approx(0.5).margin(1e-6));
  CHECK(added.hidden_share_ci95->low < 0.5);
  CHECK(added.hidden_share_ci95->high > 0.5);
  const Communication nothing = communication({0.2, -0.21, 0.19, -0.2, 0.21, -0.2, 0.1}, 0.4);
  CHECK(!nothing.exposed_by_difference_ms);
  CHECK(nothing.exposed_by_difference_ci95_ms->low < 0);
  CHECK(nothing.exposed_by_difference_ci95_ms->high > 0);
  const Communication as_alone = communication({0.38, 0.42, 0.4, 0.41, 0.39, 0.4, 0.4}, 0.4);
  CHECK(as_alone.exposed_by_difference_ms);
  CHECK(!as_alone.hidden_share);
  const Communication in_six = communication({0.2, 0.21, kNan, 0.2, 0.21, 0.2, 0.19}, 0.4);
  CHECK(*in_six.exposed_by_difference_ms == Approx(0.2).margin(0.01));
  const Communication longer = communication({0.6, 0.61, 0.59, 0.6, 0.61, 0.6, 0.59}, 0.4);
  CHECK(!longer.hidden_share);  // ranks wait longer than communication takes
  CHECK(longer.hidden_share_ci95->low < longer.hidden_share_ci95->high);
  const Communication shorter = communication({-0.2, -0.2, -0.2, -0.2, -0.2, -0.2, -0.2}, 0.4);
  CHECK(!shorter.hidden_share);  // more than all of it cannot be hidden
  const Communication few = communication({0.2, 0.2, kNan, 0.2, kNan, 0.2, 0.2}, 0.4);
  CHECK(!few.exposed_by_difference_ci95_ms);
}

TEST_CASE("a variant is compared with its stage's main program, step by step", "[analysis]") {
  Measurements measurements = measure(1.2, 1.0);
  measurements.results.push_back(measurements.results[1]);
  measurements.results.back().configuration.program =
      *std::ranges::find(known_programs(), "03_ddp_spawn_by_hand", &StageProgram::name);
  const Comparison comparison = comparison_of(make_report(measurements), "variant",
                                              "T/weak/03_ddp_spawn_by_hand/spawn/gloo/ranks:2");
  CHECK(comparison.b == kTwoRanks);
  CHECK(comparison.verdict == "same");
}

TEST_CASE("two repetitions are no verdict", "[analysis]") {
  const Report report = report_of(
      {make_result("01_single_gpu", 1, {1.0, 1.0}), make_result("03_ddp_spawn", 2, {1.0, 1.0})});
  REQUIRE(report.comparisons.size() == 1);
  CHECK(report.comparisons[0].pairs == 2);
  CHECK(!report.comparisons[0].ci95);
  CHECK(!report.comparisons[0].verdict);
}

TEST_CASE("stages are compared with peers of the same world size", "[analysis]") {
  Result of_other_work = make_result("pytorch", 2, six_times(4), Role::kPeer);
  of_other_work.configuration.workload = known_workloads().back();
  const Report report = report_of(
      {make_result("03_ddp_spawn", 1, six_times(1)), make_result("03_ddp_spawn", 2, six_times(1)),
       make_result("pytorch", 2, six_times(4), Role::kPeer), of_other_work,
       make_result("03_ddp_spawn", 2, six_times(1), Role::kControl)});
  REQUIRE(report.comparisons.size() == 2);
  const Comparison& comparison = report.comparisons[1];
  CHECK(comparison.kind == "peer");
  CHECK(comparison.a == "T/weak/03_ddp_spawn/spawn/gloo/ranks:2");
  CHECK(comparison.b == "T/weak/pytorch_tuned/spawn/gloo/ranks:2");
  CHECK(*comparison.ratio_median == Approx(0.25));
  CHECK(comparison.verdict == "faster");
}

TEST_CASE("the phases of the median step add up to it", "[analysis]") {
  // Two kinds of steps, so that nothing lies at the median itself.
  Result result = make_result("03_ddp_spawn", 2, {1.0, 10.0, 1.0, 10.0});
  const Run run = report_of({result}).runs.at(0);
  double sum_ms = 0;
  for (const std::optional<double>& phase_ms : run.phases_ms) {
    REQUIRE(phase_ms);
    sum_ms += *phase_ms;
  }
  CHECK(std::abs(sum_ms / *run.step_ms.median - 1) < 1e-9);
  CHECK(std::abs(*run.phases_ms[kForward] / sum_ms - 0.2) < 1e-9);

  for (const std::size_t block : {0U, 1U}) {
    for (Step& step : result.repetitions[block]->metrics.steps) {
      step.phase_ms[kForward] = kNan;
    }
  }
  CHECK(!report_of({result}).runs.at(0).phases_ms[kForward]);
}

TEST_CASE("arithmetic and traffic of a step", "[analysis]") {
  // 784-512-512-10 with 64 samples: 205 MFLOP as counted by hand.
  CHECK(std::abs(step_flop({784, 512, 512, 10}, 64) / 205.5e6 - 1) < 0.01);
  // One layer has no gradient of its input to compute.
  CHECK(step_flop({20, 1}, 32) == 2 * 2 * 32 * 20);
  CHECK(step_bytes({20, 1}) == 24 * 21 - 4 * 20);  // whose only weights are read forward alone
  CHECK(step_bytes({20, 5, 1}) == 24 * (21 * 5 + 6) - 4 * 20 * 5);
}

AllReduceSample sample(int world_size, std::int64_t bytes, double time_us) {
  AllReduceSample result;
  result.backend = "gloo";
  result.device = "cpu";
  result.world_size = world_size;
  result.bytes = bytes;
  result.time_us.median = time_us;
  result.time_us.n = 10;
  result.bus_bandwidth_gbps = static_cast<double>(bytes) / (time_us * 1e3) * bus_factor(world_size);
  return result;
}

constexpr double kAlphaUs = 100;
constexpr double kBetaUsPerMib = 300;

double ring_us(double bytes, double n) {
  return 2 * (n - 1) * kAlphaUs + 2 * (n - 1) / n * bytes / (1 << 20) * kBetaUsPerMib;
}

/// One process, one rank, and two ranks that send 1 and 4 MiB; the sweep is a ring's.
Measurements measure_communication(const std::vector<int>& sweep_world_sizes) {
  Measurements measurements;
  measurements.results = {make_result("01_single_gpu", 1, six_times(1)),
                          make_result("03_ddp_spawn", 1, six_times(1.1)),
                          make_result("03_ddp_spawn", 2, six_times(2))};
  measurements.results[2].bucket_bytes = {1 << 20, 1 << 22};
  measurements.results[2].no_comm_step_ms = 1.2;
  measurements.results[2].no_comm_medians_ms = six_times(1.2);
  measurements.results[2].alone_ms = 1.6;
  for (const int world_size : sweep_world_sizes) {
    for (std::int64_t bytes = 4; bytes <= (1 << 24); bytes *= 4) {
      const double time_us = ring_us(static_cast<double>(bytes), world_size);
      measurements.micro.all_reduce.push_back(sample(world_size, bytes, time_us));
    }
  }
  for (const int world_size : {1, 2}) {
    measurements.micro.limits.push_back(
        {"cpu", world_size, 100.0, 10.0, {{1 << 18, 40.0}, {1 << 26, 10.0}}});
  }
  return measurements;
}

TEST_CASE("predictions are the step without communication plus the model's all-reduces",
          "[analysis]") {
  const std::vector<int> world_sizes = GENERATE(std::vector{2}, std::vector{2, 4});
  Measurements measurements = measure_communication(world_sizes);
  // Its model must not see what others take.
  for (AllReduceSample other : std::vector(measurements.micro.all_reduce)) {
    other.time_us.median = 10 * *other.time_us.median;
    other.backend = "shm";
    measurements.micro.all_reduce.push_back(other);
    other.backend = "gloo";
    other.device = "cuda";
    measurements.micro.all_reduce.push_back(other);
  }
  const Report report = make_report(measurements);

  const Run& two_ranks = report.runs[2];
  REQUIRE(two_ranks.predicted_step_ms);
  const double comm_ms = (ring_us(1 << 20, 2) + ring_us(1 << 22, 2)) / 1e3;
  CHECK(two_ranks.prediction.algorithm.has_value() == (world_sizes.size() == 2));
  CHECK(two_ranks.prediction.ring_step_ms.has_value() == (world_sizes.size() == 2));
  CHECK_FALSE(two_ranks.prediction.tree_step_ms);
  CHECK_FALSE(two_ranks.prediction.reason);
  CHECK(std::abs(*two_ranks.predicted_step_ms / (1.2 + comm_ms) - 1) < 0.01);
  CHECK(std::abs(*two_ranks.prediction.residual - (2 / (1.2 + comm_ms) - 1)) < 0.01);
  CHECK(overall(report).find("The prediction is off by 35 % (" + two_ranks.name + ")") !=
        std::string::npos);
  CHECK(std::abs(*two_ranks.comm.exposed_by_difference_ms - 0.8) < 1e-9);
  CHECK(std::abs(*two_ranks.comm.hidden_share - 0.5) < 1e-9);
  // 5 MiB in 1.6 ms, two ranks: each byte once over the bus.
  CHECK(std::abs(*two_ranks.comm.bus_bandwidth_gbps - 5.24288 / 1.6) < 1e-6);
  CHECK(!report.runs[1].predicted_step_ms);  // one rank communicates with nobody
  CHECK(!report.runs[0].predicted_step_ms);

  // The ranks share a host: nothing is said of a network.
  CHECK(report.extrapolations.empty());
  REQUIRE(report.not_run.size() == 1);
  CHECK(report.not_run[0].reason.find("--network") != std::string::npos);
}

TEST_CASE("a residual pairs the blocks, of which the run without communication may have fewer",
          "[analysis]") {
  Measurements measurements = measure_communication({2});
  const double comm_ms = (ring_us(1 << 20, 2) + ring_us(1 << 22, 2)) / 1e3;
  std::vector<double> no_comm_ms;
  std::vector<double> step_ms;
  for (int block = 0; block < 9; ++block) {  // the machine grows slower all the time
    no_comm_ms.push_back(1 + 0.5 * block);
    step_ms.push_back(1.1 * (no_comm_ms.back() + comm_ms));
  }
  no_comm_ms.resize(6);
  Result& two_ranks = measurements.results[2];
  two_ranks.repetitions = make_result("03_ddp_spawn", 2, step_ms).repetitions;
  two_ranks.no_comm_medians_ms = no_comm_ms;
  two_ranks.no_comm_step_ms = median(no_comm_ms);
  const Run run = make_report(measurements).runs[2];
  REQUIRE(*run.step_ms.median / *run.predicted_step_ms > 1.25);
  CHECK(run.prediction.residual.value() == Approx(0.1).margin(0.002));
  CHECK(run.repetitions[5]->no_comm_median_ms == 3.5);
  CHECK_FALSE(run.repetitions[6]->no_comm_median_ms);

  two_ranks.repetitions[0].reset();  // as bench leaves it where it was interrupted
  two_ranks.no_comm_medians_ms = {1, kNan, kNan};
  CHECK_FALSE(make_report(measurements).runs[2].prediction.residual);
}

TEST_CASE("the worst prediction is named", "[analysis]") {
  Measurements measurements = measure_communication({2});
  measurements.results.push_back(make_result("04_ddp_launcher", 2, {9, 9, 9}));
  Result& worst = measurements.results.back();
  worst.configuration.launcher = "mpirun";
  worst.configuration.backend = "gloo";
  worst.bucket_bytes = {1 << 20, 1 << 22};
  worst.no_comm_step_ms = 1.2;
  worst.no_comm_medians_ms = {1.2, 1.2, 1.2};
  worst.alone_ms = 1.6;
  Result control = worst;
  control.configuration.role = Role::kControl;
  measurements.results.push_back(control);  // is no prediction of its own
  CHECK(overall(make_report(measurements))
            .find("The worst of 2 predictions is off by 190 % "
                  "(T/weak/04_ddp_launcher/mpirun/gloo/ranks:2)") != std::string::npos);
}

TEST_CASE("a model that the replay refutes predicts nothing", "[analysis]") {
  // The sweep fell into a slow mode, alpha 49 us; replayed, the step's two buckets take 5.5 us.
  Measurements measurements = measure_communication({2});
  measurements.micro.all_reduce.clear();
  for (std::int64_t bytes = 4; bytes <= (1 << 24); bytes *= 4) {
    measurements.micro.all_reduce.push_back(
        sample(2, bytes, 49 + static_cast<double>(bytes) / (1 << 20) * 110));
  }
  Result& two_ranks = measurements.results[2];
  two_ranks.bucket_bytes = {51200, 54272};
  two_ranks.alone_ms = 0.0055;
  measurements.network = Network{.alpha_us = 2, .gbps = 10};
  const auto expect_nothing = [&](const std::string& reason) {
    const Report report = make_report(measurements);
    const Run& run = report.runs[2];
    CHECK(!run.predicted_step_ms);
    CHECK(!run.prediction.compute_ms);
    CHECK(!run.prediction.comm_ms);
    CHECK(!run.prediction.residual);
    CHECK(run.prediction.reason == reason);
    CHECK(overall(report).find("No prediction of " + run.name + ": " + reason + ".") !=
          std::string::npos);
    return report;
  };
  Report report =
      expect_nothing("its 2 all-reduces take 109 us by the model, 5.50 us when replayed");
  // The exchange that was measured is no slower than its floor.
  CHECK(*report.runs[2].floor.comm_ms == Approx(0.0055));
  // What was stated does not come from the sweep.
  CHECK(!report.extrapolations.empty());

  two_ranks.bucket_bytes = {105472};
  two_ranks.alone_ms = 0.12;
  expect_nothing("its all-reduce takes 60.1 us by the model, 120 us when replayed");
  two_ranks.alone_ms.reset();
  expect_nothing("its all-reduce takes 60.1 us by the model, which no replay confirms");
  for (const double alone_us : {49.0, 74.0}) {  // a quarter more or less is confirmation enough
    two_ranks.alone_ms = alone_us / 1e3;
    CHECK(make_report(measurements).runs[2].predicted_step_ms);
  }

  measurements.network.reset();
  measurements.results[2].configuration.nodes = 2;
  report = make_report(measurements);
  CHECK(report.extrapolations.empty());
  CHECK(report.not_run.at(0).reason == "no model of several world sizes that a replay confirms");
}

TEST_CASE("more ranks are predicted by a network that was measured, or one that was stated",
          "[analysis]") {
  const bool stated = GENERATE(true, false);
  Measurements measurements = measure_communication({2, 4, 8});
  if (stated) {
    // 300 us for 1 MiB
    measurements.network = Network{.alpha_us = 100, .gbps = (1 << 20) / 300e-6 / 1e9};
  } else {
    for (Result& result : measurements.results) {
      result.configuration.nodes = result.configuration.world_size;
    }
    // What ranks of one node take says nothing of a network.
    CHECK(make_report(measurements).extrapolations.empty());
    for (AllReduceSample& sample : measurements.micro.all_reduce) {
      sample.nodes = sample.world_size;
    }
  }
  const Report report = make_report(measurements);
  CHECK(report.not_run.empty());
  int rings = 0;
  int trees = 0;
  for (const Extrapolation& extrapolation : report.extrapolations) {
    CHECK(extrapolation.from == report.runs[2].name);
    const double n = extrapolation.world_size;
    const bool ring = extrapolation.algorithm == AllReduceAlgorithm::kRing;
    ++(ring ? rings : trees);
    const double comm_us = ring ? ring_us(1 << 20, n) + ring_us(1 << 22, n)
                                : 4 * std::log2(n) * kAlphaUs + 2 * 5 * kBetaUsPerMib;
    CHECK(std::abs(extrapolation.predicted_step_ms / (1.2 + comm_us / 1e3) - 1) < 0.01);
    CHECK(std::abs(*extrapolation.efficiency * extrapolation.predicted_step_ms - 1) < 1e-9);
  }
  CHECK(rings == 4);
  CHECK(trees == (stated ? 4 : 0));  // the sweep tells that it is a ring
  std::string assumptions;
  for (const std::string& line : report.assumptions) {
    assumptions += line + "\n";
  }
  CHECK((assumptions.find("alpha 100 us and 3.4952") != std::string::npos) == stated);
  CHECK(assumptions.find("Fitted without one of the world sizes it is off by up to 0 % there.") !=
        std::string::npos);
  measurements.results[2].configuration.world_size = 64;
  const Report of_many = make_report(measurements);
  CHECK(of_many.extrapolations.empty() == !stated);  // no replay of 64 ranks confirms the sweep
  for (const Extrapolation& extrapolation : of_many.extrapolations) {
    CHECK(extrapolation.world_size > 64);
  }
  for (Result& result : measurements.results) {
    result.configuration.scaling = "strong";
  }
  CHECK(make_report(measurements).extrapolations.empty());  // a rank's work would shrink
}

TEST_CASE("the floor is the largest of its parts, which may overlap", "[analysis]") {
  Measurements measurements = measure_communication({2});
  Report report = make_report(measurements);
  const Run& two_ranks = report.runs[2];
  REQUIRE(two_ranks.floor_ms);
  CHECK(std::abs(*two_ranks.floor.compute_ms - 2560 / 100e9 * 1e3) < 1e-12);
  CHECK(two_ranks.floor.memory_ms == 0.0);  // less than the least that was measured
  CHECK(!two_ranks.floor.launch_ms);
  // The sweep's best is 16 MiB in 5 ms, the replay 5 MiB in 1.6 ms: the sweep's bounds it.
  CHECK(std::abs(*two_ranks.floor.comm_ms - ring_us(1 << 24, 2) / 1e3 * 5 / 16) < 1e-9);
  CHECK(*two_ranks.floor_ms == *two_ranks.floor.comm_ms);
  // The sweep's best is what it was at best, on the same device and as many ranks.
  std::vector<AllReduceSample>& sweep = measurements.micro.all_reduce;
  const std::vector<AllReduceSample> as_measured = sweep;
  sweep.back().time_us.p10 = *sweep.back().time_us.median / 2;
  CHECK(*make_report(measurements).runs[2].floor.comm_ms == Approx(*two_ranks.floor.comm_ms / 2));
  sweep.back().device = "cuda";
  CHECK(*make_report(measurements).runs[2].floor.comm_ms > *two_ranks.floor.comm_ms);
  sweep = as_measured;
  // Limits are those of one thread.
  measurements.results[0].configuration.threads = 2;
  CHECK_FALSE(make_report(measurements).runs[0].floor_ms);
  measurements.results[0].configuration.threads = 1;
  // Another's replay of as many bytes was faster.
  measurements.results.push_back(make_result("04_ddp_launcher", 2, {2, 2, 2}));
  measurements.results.back().configuration.backend = "shm";
  measurements.results.back().bucket_bytes = {5 << 20};
  measurements.results.back().alone_ms = 0.3;
  CHECK(*make_report(measurements).runs[2].floor.comm_ms == Approx(0.3));

  for (Limit& limit : measurements.micro.limits) {
    limit.device = "cuda";
    limit.kernel_launch_us = 2.5;
  }
  measurements.results[0].configuration.device = "cuda";
  const Run launched = make_report(measurements).runs[0];
  CHECK(launched.floor.launch_ms == 0.0025);
  CHECK(launched.floor_ms == 0.0025);
}

TEST_CASE("memory is as fast as what was measured with as many bytes or with the next fewer",
          "[analysis]") {
  Measurements measurements;
  measurements.results = {make_result("01_single_gpu", 1, {9, 9, 9})};
  const std::vector<Workload>& workloads = known_workloads();
  // 784-512-512-10: weights and gradients are 5.4 MB.
  const auto m = std::ranges::find(workloads, "M", &Workload::name);
  measurements.results[0].configuration.workload = *m;
  const double bytes = step_bytes(m->layers);
  const auto memory_ms = [&](const std::vector<MemoryRate>& rates) {
    measurements.micro.limits = {{"cpu", 1, 100.0, 10.0, rates}};
    return make_report(measurements).runs[0].floor.memory_ms;
  };
  const double at_40_ms = bytes / 40e9 * 1e3;
  CHECK(memory_ms({{1 << 20, 90.0}, {1 << 22, 40.0}, {1 << 24, 20.0}}) == Approx(at_40_ms));
  CHECK(memory_ms({{1 << 20, 90.0}, {1 << 22, 20.0}, {1 << 24, 40.0}}) == Approx(at_40_ms));
  CHECK(memory_ms({{1 << 20, 90.0}, {1 << 22, 40.0}}) == Approx(at_40_ms));
  CHECK(memory_ms({{1 << 24, 40.0}}) == 0.0);
  CHECK_FALSE(memory_ms({}));
  CHECK_FALSE(memory_ms({{1 << 20, std::nullopt}}));
}

TEST_CASE("a step is bound by its largest part, and by overhead far above its floor",
          "[analysis]") {
  Run run;
  run.launcher = "spawn";
  run.world_size = 2;
  run.step_ms.median = 10;
  const auto bound = [&](double compute_ms, double memory_ms, std::optional<double> exposed_ms) {
    run.floor = {compute_ms, memory_ms, 0.5, std::nullopt};
    run.floor_ms = std::max({compute_ms, memory_ms, 0.5});
    run.phases_ms[kExposedComm] = exposed_ms;
    return bound_by(run).value_or("");
  };
  CHECK(bound(6, 3, 2) == "arithmetic");
  CHECK(bound(3, 6, 2) == "memory");
  CHECK(bound(3, 1, 4) == "communication");
  CHECK(bound(3, 2, 1) == "overhead");
  CHECK(bound(3, 2, std::nullopt).empty());
  CHECK(bound(0.1, 0.1, 6) == "communication");
  run.step_ms.median = 10.1;
  CHECK(bound(0.1, 0.1, 4) == "overhead");
  CHECK(bound(0.1, 0.1, 6) == "communication");  // however small the floor is
  CHECK(bound(0.1, 0.1, std::nullopt).empty());
  run.step_ms.median = 10;
  run.phases_ms[kImbalance] = 4;  // for which nothing of its own is to blame
  CHECK(bound(3, 1, 1) == "arithmetic");
  CHECK(bound(3, 1, 3.1) == "communication");
  run.floor_ms.reset();
  CHECK_FALSE(bound_by(run));
}

TEST_CASE("sizes whose passes disagree are named", "[analysis]") {
  Measurements measurements = measure_communication({2});
  measurements.micro.all_reduce[1].pass_spread = 1.4;
  CHECK(overall(make_report(measurements)).find("not steady") == std::string::npos);
  measurements.micro.all_reduce[2].pass_spread = 1.6;
  measurements.micro.all_reduce[4].pass_spread = 40;
  CHECK(overall(make_report(measurements))
            .find("The all-reduce sweep of gloo on 2 ranks is not steady: 2 of 12 sizes, of 64 to "
                  "1024 bytes") != std::string::npos);
}

TEST_CASE("what was not measured is not predicted", "[analysis]") {
  Measurements measurements;
  measurements.results = {make_result("01_single_gpu", 1, {1, 1, 1}),
                          make_result("03_ddp_spawn", 2, {2, 2, 2})};
  measurements.results[1].bucket_bytes = {4096};
  measurements.results[1].no_comm_step_ms = 1;
  const Report report = make_report(measurements);  // no sweep
  CHECK(report.communication_models.empty());
  CHECK(!report.runs[1].predicted_step_ms);
  CHECK(!report.runs[1].prediction.algorithm);
  CHECK(!report.runs[1].floor_ms);
  CHECK(!report.runs[1].bound);
  CHECK(report.extrapolations.empty());
  CHECK(overall(report).find("prediction is") == std::string::npos);
  for (const double bad : {kNan, 0.0, -1.0}) {
    measurements.micro.all_reduce = {sample(2, 4, bad), sample(2, 4096, bad),
                                     sample(2, 65536, bad)};
    CHECK(!make_report(measurements).runs[1].predicted_step_ms);
  }
}

/// Rows of two ranks, 40 steps; rank 1 needs twice as long, and rank 0 waits for it.
std::string metrics_text(bool waits_known = true) {
  std::string text;
  for (int rank = 0; rank < 2; ++rank) {
    for (int step = 0; step < 40; ++step) {
      const std::string wait_ms = rank == 1 ? "0.01" : "1.0";
      text += "{\"rank\":" + std::to_string(rank) +
              ",\"epoch\":0,\"step\":" + std::to_string(step) +
              ",\"step_ms\":2.0,\"data_ms\":0.1,\"forward_ms\":0.1,\"backward_ms\":0.1,"
              "\"exposed_comm_ms\":" +
              (waits_known ? wait_ms : "null") + ",\"optimizer_ms\":0.1,\"loss\":1}\n";
    }
  }
  return text + R"({"summary":{"warmup_steps":10,"epochs":1,"global_batch":64,"moved":1,)"
                R"("cpu_time_ms":[90,60],"timed_wall_ms":[100,100]}})"
                "\n";
}

StageMetrics read_text(const std::string& text) {
  const ddp::ScratchFolder folder("ddp-analysis-test");
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path) << text;
  return read_metrics(path, 2, /*one_host=*/true);
}

TEST_CASE("a slow rank is named by what it needs besides waiting", "[analysis]") {
  const StageMetrics metrics = read_text(metrics_text());
  const SlowestRank slowest = compare_ranks(metrics).at(1);
  CHECK(slowest.rank == 1);
  CHECK(slowest.share_of_steps == 1.0);
  CHECK(slowest.median_excess == Approx(0.99));
  CHECK(metrics.cpu_utilisation().value() == Approx(0.75));

  Result result = make_result("03_ddp_spawn", 2, {2, 2, 2, 2, 2});
  const std::string sentence = "Rank 1 of T/weak/03_ddp_spawn/spawn/gloo/ranks:2 is slow";
  for (std::optional<StageRun>& launch : result.repetitions) {
    launch->metrics = metrics;
  }
  // Two ranks of which one is late in every launch: the same one in all five is chance once in 16.
  CHECK(overall(report_of({result})).find(sentence) == std::string::npos);
  result.repetitions.push_back(result.repetitions.front());
  CHECK(overall(report_of({result})).find(sentence) != std::string::npos);
  CHECK(report_of({result}).runs[0].slowest_rank->excess_ci95->low == Approx(0.99));

  // A wait that is not known names nobody.
  CHECK(compare_ranks(read_text(metrics_text(false))).empty());
}

TEST_CASE("each rank writes each step once", "[analysis]") {
  const std::string last = R"("rank":1,"epoch":0,"step":39,)";
  // As many rows as there should be, but one rank's is another's.
  for (const auto& [replacement, error] :
       {std::pair(R"("rank":0,"epoch":0,"step":39,)", "step 39 of rank 0 was written twice"),
        std::pair(R"("rank":1,"epoch":0,"step":7,)", "step 7 of rank 1 was written twice"),
        // Memory for it would be gigabytes.
        std::pair(R"("rank":1,"epoch":0,"step":99999999,)",
                  "/step: expected less than the 81 lines, got 99999999"),
        std::pair(R"("rank":1,"epoch":0,"step":40,)",
                  "step 39 was written by 1 ranks, expected 2")}) {
    CAPTURE(error);
    std::string text = metrics_text();
    text.replace(text.find(last), last.size(), replacement);
    std::string message;
    try {
      read_text(text);
    } catch (const ddp::Error& refusal) {
      message = refusal.what();
    }
    CHECK(message.find(error) != std::string::npos);
  }
}

}  // namespace
