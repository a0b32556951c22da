// What bench concludes from measurements: verdicts, predictions, floors, slow ranks.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "bench/report/analysis.hpp"
#include "bench/report/conclusions.hpp"
#include "bench/report/results.hpp"
#include "bench/report/verdict.hpp"
#include "bench/run/catalog.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::bench;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Every block's run has steps around `median_ms[block]`.
Result make_result(const std::string& program, int world_size, const std::vector<double>& median_ms,
                   Role role = Role::kStage) {
  Result result;
  Configuration& configuration = result.configuration;
  configuration.workload = known_workloads().front();
  for (const StageProgram& known : known_programs()) {
    if (known.name == program) {
      configuration.program = known;
    }
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
    Repetition repetition;
    for (const double share : {0.98, 0.99, 1.0, 1.01, 1.02}) {
      Step step;
      step.step_ms = block_ms * share;
      step.phase_ms = {0.1 * step.step_ms, 0.2 * step.step_ms, 0.3 * step.step_ms,
                       0.3 * step.step_ms, 0.1 * step.step_ms};
      repetition.steps.push_back(step);
    }
    repetition.median_ms = block_ms;
    result.repetitions.emplace_back(repetition);
  }
  return result;
}

const Comparison& comparison_of(const Report& report, Comparison::Kind kind, const std::string& a) {
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.kind == kind && comparison.a == a) {
      return comparison;
    }
  }
  FAIL("no comparison of " << a);
  return report.comparisons.front();
}

const std::string kOneProcess = "T/weak/01_single_gpu/ranks:1";
const std::string kTwoRanks = "T/weak/03_ddp_spawn/spawn/gloo/ranks:2";

/// One process, two ranks that take `ratio` times as long, and a control of each.
Report make_report(double ratio, double control) {
  Report report;
  report.results.push_back(make_result("01_single_gpu", 1, {1.0, 1.1, 0.9, 1.05, 0.95}));
  report.results.push_back(make_result(
      "03_ddp_spawn", 2, {1.01 * ratio, 1.09 * ratio, 0.91 * ratio, 1.04 * ratio, 0.96 * ratio}));
  for (const auto& [original, factor] : {std::pair(0, control), std::pair(1, 1.0)}) {
    report.results.push_back(report.results[static_cast<std::size_t>(original)]);
    report.results.back().configuration.role = Role::kControl;
    for (std::optional<Repetition>& repetition : report.results.back().repetitions) {
      repetition->median_ms *= factor;
    }
  }
  compare(report);
  return report;
}

std::string overall(const Report& report) {
  std::string text;
  for (const std::string& line : conclude_overall({}, report, nlohmann::ordered_json::object())) {
    text += line + "\n";
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
    const Report report = make_report(ratio, control);
    return comparison_of(report, Comparison::Kind::kBaseline, kTwoRanks).verdict;
  };
  CHECK(verdict(1.2, 1.0) == "faster");  // 1.2x the time for 2x the samples
  CHECK(verdict(2.5, 1.0) == "slower");
  CHECK(verdict(2.0, 1.0) == "same");
  CHECK(verdict(1.2, 1.02) == "faster");
  CHECK(verdict(1.2, 1.04) == std::nullopt);
  CHECK(verdict(1.2, 0.96) == std::nullopt);
  const Report report = make_report(1.2, 1.04);
  const Comparison& control =
      comparison_of(report, Comparison::Kind::kControl, kOneProcess + "/control");
  CHECK(std::abs(*control.ratio_median - 1.04) < 1e-9);
  CHECK(control.verdict == "slower");
  CHECK(overall(report).find("No verdict on what these stand for") != std::string::npos);
  CHECK(overall(make_report(1.2, 1.0)).find("so the verdicts stand") != std::string::npos);
}

TEST_CASE("a verdict needs a control of its kind that was measured", "[analysis]") {
  Report report = make_report(1.2, 1.0);
  const auto verdict = [&] {
    compare(report);
    return comparison_of(report, Comparison::Kind::kBaseline, kTwoRanks).verdict;
  };
  CHECK(verdict() == "faster");
  SECTION("none of several processes") {
    report.results.pop_back();
  }
  SECTION("none of one process") {
    report.results.erase(report.results.begin() + 2);
  }
  SECTION("one that failed") {
    report.results.back().error = "exit code 1";
  }
  SECTION("one that was never run") {
    report.results.back().repetitions.assign(5, std::nullopt);
  }
  SECTION("one of another workload") {
    report.results.back().configuration.workload = known_workloads().back();
  }
  SECTION("none at all") {
    report.results.resize(2);
  }
  CHECK(verdict() == std::nullopt);
  CHECK(overall(report).find("verdicts stand") == std::string::npos);
  CHECK(overall(report).find("No verdict without an A/A control") != std::string::npos);
}

TEST_CASE("two repetitions are no verdict", "[analysis]") {
  Report report;
  report.results.push_back(make_result("01_single_gpu", 1, {1.0, 1.0}));
  report.results.push_back(make_result("03_ddp_spawn", 2, {1.0, 1.0}));
  compare(report);
  REQUIRE(report.comparisons.size() == 1);
  CHECK(report.comparisons[0].pairs == 2);
  CHECK(!report.comparisons[0].ci95);
  CHECK(!report.comparisons[0].verdict);
}

TEST_CASE("stages are compared with peers of the same world size", "[analysis]") {
  Report report;
  report.results.push_back(make_result("03_ddp_spawn", 1, {1, 1, 1}));
  report.results.push_back(make_result("03_ddp_spawn", 2, {1, 1, 1}));
  report.results.push_back(make_result("pytorch", 2, {4, 4, 4}, Role::kPeer));
  report.results.push_back(make_result("03_ddp_spawn", 2, {1, 1, 1}, Role::kControl));
  compare(report);
  REQUIRE(report.comparisons.size() == 2);
  const Comparison& comparison = report.comparisons[1];
  CHECK(comparison.kind == Comparison::Kind::kPeer);
  CHECK(comparison.a == "T/weak/03_ddp_spawn/spawn/gloo/ranks:2");
  CHECK(comparison.b == "T/weak/pytorch_tuned/spawn/gloo/ranks:2");
  CHECK(*comparison.ratio_median == 0.25);
  CHECK(comparison.verdict == "faster");
}

TEST_CASE("the phases of the median step add up to it", "[analysis]") {
  // Two kinds of steps, so that nothing lies at the median itself.
  Result result = make_result("03_ddp_spawn", 2, {1.0, 10.0, 1.0, 10.0});
  const auto phases_ms = result.phases_ms();
  double sum_ms = 0;
  for (const std::optional<double>& phase_ms : phases_ms) {
    REQUIRE(phase_ms);
    sum_ms += *phase_ms;
  }
  CHECK(std::abs(sum_ms / *result.step_ms().median - 1) < 1e-9);
  CHECK(std::abs(*phases_ms[kForward] / sum_ms - 0.2) < 1e-9);

  result.repetitions[0]->steps[0].phase_ms[kForward] = kNan;
  for (Step& step : result.repetitions[0]->steps) {
    step.phase_ms[kForward] = kNan;
  }
  for (Step& step : result.repetitions[1]->steps) {
    step.phase_ms[kForward] = kNan;
  }
  CHECK(!result.phases_ms()[kForward]);
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
  return result;
}

TEST_CASE("predictions are the step without communication plus the model's all-reduces",
          "[analysis]") {
  constexpr double kAlphaUs = 100;
  constexpr double kBetaUsPerMib = 300;
  const auto ring_us = [&](double bytes, double n) {
    return 2 * (n - 1) * kAlphaUs + 2 * (n - 1) / n * bytes / (1 << 20) * kBetaUsPerMib;
  };
  Report report;
  report.results.push_back(make_result("01_single_gpu", 1, {1, 1, 1}));
  report.results.push_back(make_result("03_ddp_spawn", 1, {1.1, 1.1, 1.1}));
  report.results.push_back(make_result("03_ddp_spawn", 2, {2, 2, 2}));
  report.results[2].bucket_bytes = {1 << 20, 1 << 22};
  report.results[2].no_comm_step_ms = 1.2;
  report.results[2].alone_ms = 1.0;
  for (const int world_size : {2, 4}) {
    for (std::int64_t bytes = 4; bytes <= (1 << 24); bytes *= 4) {
      const double time_us = ring_us(static_cast<double>(bytes), world_size);
      report.micro.all_reduce.push_back(sample(world_size, bytes, time_us));
    }
  }
  for (const int world_size : {1, 2}) {
    report.micro.limits.push_back({world_size, "cpu", 100.0, 10.0});
  }
  compare(report);
  analyse(report);

  const Result& two_ranks = report.results[2];
  REQUIRE(two_ranks.prediction);
  const double comm_ms = (ring_us(1 << 20, 2) + ring_us(1 << 22, 2)) / 1e3;
  CHECK(two_ranks.prediction->algorithm == AllReduceAlgorithm::kRing);
  CHECK(std::abs(two_ranks.prediction->step_ms() / (1.2 + comm_ms) - 1) < 0.01);
  CHECK(std::abs(*two_ranks.residual() - (2 / (1.2 + comm_ms) - 1)) < 0.01);
  CHECK(std::abs(*median_residual(report) - std::abs(*two_ranks.residual())) < 1e-12);
  CHECK(std::abs(*two_ranks.exposed_by_difference_ms() - 0.8) < 1e-9);
  CHECK(std::abs(*two_ranks.hidden_share() - 0.2) < 1e-9);
  // 5 MiB in 1 ms, two ranks: each byte once over the bus.
  CHECK(std::abs(*two_ranks.bus_bandwidth_gbps() - 5.24288) < 1e-6);
  CHECK(std::abs(*report.results[1].residual() - 0.1) < 1e-9);  // stage 01 is the prediction
  CHECK(!report.results[0].prediction);

  REQUIRE(two_ranks.floor);
  CHECK(std::abs(two_ranks.floor->compute_ms - 2560 / 100e9 * 1e3) < 1e-12);
  CHECK(two_ranks.floor->comm_ms > 0);
  CHECK(two_ranks.floor->total_ms() < 2);

  int checked = 0;
  for (const Extrapolation& extrapolation : report.extrapolations) {
    CHECK(extrapolation.from == two_ranks.configuration.name());
    if (extrapolation.algorithm == AllReduceAlgorithm::kRing) {
      const double n = extrapolation.world_size;
      const double expected_ms = 1.2 + (ring_us(1 << 20, n) + ring_us(1 << 22, n)) / 1e3;
      CHECK(std::abs(extrapolation.step_ms / expected_ms - 1) < 0.01);
      CHECK(std::abs(*extrapolation.efficiency * extrapolation.step_ms - 1) < 1e-9);
      ++checked;
    }
  }
  CHECK(checked == 4);
  CHECK(assumptions(report).size() == 4);
}

TEST_CASE("what was not measured is not predicted", "[analysis]") {
  Report report;
  report.results.push_back(make_result("01_single_gpu", 1, {1, 1, 1}));
  report.results.push_back(make_result("03_ddp_spawn", 2, {2, 2, 2}));
  report.results[1].bucket_bytes = {4096};
  report.results[1].no_comm_step_ms = 1;
  compare(report);
  analyse(report);  // no sweep
  CHECK(report.communication_models.empty());
  CHECK(!report.results[1].prediction);
  CHECK(!report.results[1].floor);
  CHECK(report.extrapolations.empty());
  CHECK(!median_residual(report));

  for (const double bad : {kNan, 0.0, -1.0}) {
    report.micro.all_reduce = {sample(2, 4, bad), sample(2, 4096, bad), sample(2, 65536, bad)};
    analyse(report);
    CHECK(!report.results[1].prediction);
  }
}

/// Rows of two ranks, 40 steps; `slow` needs twice as long, and the other waits for it.
std::string write_metrics(const std::string& name, int slow, bool waits_known = true) {
  const std::string path = (fs::temp_directory_path() / name).string();
  std::ofstream out(path);
  for (int rank = 0; rank < 2; ++rank) {
    for (int step = 0; step < 40; ++step) {
      const double wait_ms = rank == slow ? 0.01 : 1.0;
      out << "{\"rank\":" << rank << ",\"epoch\":0,\"step\":" << step
          << ",\"step_ms\":2.0,\"data_ms\":0.1,\"forward_ms\":0.1,\"backward_ms\":0.1,"
          << "\"exposed_comm_ms\":" << (waits_known ? std::to_string(wait_ms) : "null")
          << ",\"optimizer_ms\":0.1,\"loss\":1}\n";
    }
  }
  out << R"({"summary":{"warmup_steps":10,"epochs":1,"global_batch":64,"moved":1,)"
      << R"("cpu_time_ms":[90,60],"timed_wall_ms":[100,100]}})" << '\n';
  return path;
}

TEST_CASE("a slow rank is named by what it needs besides waiting", "[analysis]") {
  const std::string path = write_metrics("ddp-analysis-test-slow.jsonl", 1);
  const StageMetrics metrics = read_metrics(path, 2);
  fs::remove(path);
  const std::optional<SlowestRank> slowest = find_slowest_rank(metrics);
  REQUIRE(slowest);
  CHECK(slowest->rank == 1);
  CHECK(slowest->share_of_steps == 1.0);
  CHECK(std::abs(slowest->median_excess - 0.99) < 1e-6);
  CHECK(std::abs(*metrics.cpu_utilisation() - 0.75) < 1e-12);

  Report report;
  report.results.push_back(make_result("03_ddp_spawn", 2, {2}));
  report.results[0].repetitions[0]->slowest_rank = slowest;
  CHECK(overall(report).find("Rank 1 of T/weak/03_ddp_spawn/spawn/gloo/ranks:2 is slow") !=
        std::string::npos);
}

TEST_CASE("each rank writes each step once", "[analysis]") {
  struct Case {
    std::string row;
    std::string replacement;
    const char* error;
  };
  const Case damaged = GENERATE(values<Case>({
      // As many rows as there should be, but one rank's is another's.
      {"{\"rank\":1,\"epoch\":0,\"step\":39,", "{\"rank\":0,\"epoch\":0,\"step\":39,",
       "step 39 of rank 0 was written twice"},
      {"{\"rank\":1,\"epoch\":0,\"step\":39,", "{\"rank\":1,\"epoch\":0,\"step\":7,",
       "step 7 of rank 1 was written twice"},
      {"{\"rank\":1,\"epoch\":0,\"step\":39,", "{\"rank\":1,\"epoch\":0,\"step\":40,",
       "step 39 was written by 1 ranks, expected 2"},
  }));
  CAPTURE(damaged.error);
  const std::string path = write_metrics("ddp-analysis-test-rows.jsonl", 1);
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  text.replace(text.find(damaged.row), damaged.row.size(), damaged.replacement);
  std::ofstream(path) << text;
  std::string message;
  try {
    read_metrics(path, 2);
  } catch (const ddp::Error& error) {
    message = error.what();
  }
  fs::remove(path);
  CHECK(message.find(damaged.error) != std::string::npos);
}

TEST_CASE("a wait that is not known names nobody", "[analysis]") {
  const std::string path = write_metrics("ddp-analysis-test-unknown.jsonl", 1, false);
  const StageMetrics metrics = read_metrics(path, 2);
  fs::remove(path);
  CHECK(!find_slowest_rank(metrics));
}

}  // namespace
