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
    configuration.program = {program, program, "tuned", Start::kSpawn, false};
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
  CHECK(overall(report).find("no verdict stands where that is more than 3 %") != std::string::npos);
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
  const Communication few = communication({0.2, 0.2, kNan, 0.2, kNan, 0.2, 0.2}, 0.4);
  CHECK(!few.exposed_by_difference_ci95_ms);
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
  const Report report = report_of({make_result("03_ddp_spawn", 1, six_times(1)),
                                   make_result("03_ddp_spawn", 2, six_times(1)),
                                   make_result("pytorch", 2, six_times(4), Role::kPeer),
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
  CHECK(step_bytes({20, 1}) == 24 * 21);
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

TEST_CASE("predictions are the step without communication plus the model's all-reduces",
          "[analysis]") {
  constexpr double kAlphaUs = 100;
  constexpr double kBetaUsPerMib = 300;
  const auto ring_us = [&](double bytes, double n) {
    return 2 * (n - 1) * kAlphaUs + 2 * (n - 1) / n * bytes / (1 << 20) * kBetaUsPerMib;
  };
  Measurements measurements;
  measurements.results = {make_result("01_single_gpu", 1, six_times(1)),
                          make_result("03_ddp_spawn", 1, six_times(1.1)),
                          make_result("03_ddp_spawn", 2, six_times(2))};
  measurements.results[2].bucket_bytes = {1 << 20, 1 << 22};
  measurements.results[2].no_comm_step_ms = 1.2;
  measurements.results[2].no_comm_medians_ms = six_times(1.2);
  measurements.results[2].alone_ms = 1.0;
  for (const int world_size : {2, 4}) {
    for (std::int64_t bytes = 4; bytes <= (1 << 24); bytes *= 4) {
      const double time_us = ring_us(static_cast<double>(bytes), world_size);
      measurements.micro.all_reduce.push_back(sample(world_size, bytes, time_us));
    }
  }
  for (const int world_size : {1, 2}) {
    measurements.micro.limits.push_back({"cpu", world_size, 100.0, 10.0});
  }
  const Report report = make_report(measurements);

  const Run& two_ranks = report.runs[2];
  REQUIRE(two_ranks.predicted_step_ms);
  const double comm_ms = (ring_us(1 << 20, 2) + ring_us(1 << 22, 2)) / 1e3;
  CHECK(two_ranks.prediction.algorithm == AllReduceAlgorithm::kRing);
  CHECK(std::abs(*two_ranks.predicted_step_ms / (1.2 + comm_ms) - 1) < 0.01);
  CHECK(std::abs(*two_ranks.prediction.residual - (2 / (1.2 + comm_ms) - 1)) < 0.01);
  CHECK(std::abs(*median_residual(report) - std::abs(*two_ranks.prediction.residual)) < 1e-12);
  CHECK(std::abs(*two_ranks.comm.exposed_by_difference_ms - 0.8) < 1e-9);
  CHECK(std::abs(*two_ranks.comm.hidden_share - 0.2) < 1e-9);
  // 5 MiB in 1 ms, two ranks: each byte once over the bus.
  CHECK(std::abs(*two_ranks.comm.bus_bandwidth_gbps - 5.24288) < 1e-6);
  CHECK(std::abs(*report.runs[1].prediction.residual - 0.1) < 1e-9);  // stage 01 is the prediction
  CHECK(!report.runs[0].predicted_step_ms);

  REQUIRE(two_ranks.floor_ms);
  CHECK(std::abs(*two_ranks.floor.compute_ms - 2560 / 100e9 * 1e3) < 1e-12);
  CHECK(*two_ranks.floor.comm_ms > 0);
  CHECK(*two_ranks.floor_ms < 2);

  int checked = 0;
  for (const Extrapolation& extrapolation : report.extrapolations) {
    CHECK(extrapolation.from == two_ranks.name);
    if (extrapolation.algorithm == AllReduceAlgorithm::kRing) {
      const double n = extrapolation.world_size;
      const double expected_ms = 1.2 + (ring_us(1 << 20, n) + ring_us(1 << 22, n)) / 1e3;
      CHECK(std::abs(extrapolation.predicted_step_ms / expected_ms - 1) < 0.01);
      CHECK(std::abs(*extrapolation.efficiency * extrapolation.predicted_step_ms - 1) < 1e-9);
      ++checked;
    }
  }
  CHECK(checked == 4);
  CHECK(report.assumptions.size() == 4);
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
  CHECK(report.extrapolations.empty());
  CHECK(!median_residual(report));
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
  return read_metrics(path, 2);
}

TEST_CASE("a slow rank is named by what it needs besides waiting", "[analysis]") {
  const StageMetrics metrics = read_text(metrics_text());
  const SlowestRank slowest = find_slowest_rank(metrics).value();
  CHECK(slowest.rank == 1);
  CHECK(slowest.share_of_steps == 1.0);
  CHECK(slowest.median_excess == Approx(0.99));
  CHECK(metrics.cpu_utilisation().value() == Approx(0.75));

  Result result = make_result("03_ddp_spawn", 2, {2});
  result.repetitions[0]->metrics = metrics;
  CHECK(overall(report_of({result}))
            .find("Rank 1 of T/weak/03_ddp_spawn/spawn/gloo/ranks:2 is slow") != std::string::npos);

  // A wait that is not known names nobody.
  CHECK(!find_slowest_rank(read_text(metrics_text(false))));
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
