// From which width and batch on several ranks win: of made-up reports.
#include "bench/report/crossover.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/report/conclusions.hpp"
#include "tests/catch.hpp"

namespace {

using namespace ddp::bench;

/// Two ranks that make `speedup` times the samples of one process.
void add_pair(Report& report, const std::string& model, std::int64_t batch, double speedup) {
  Run baseline;
  baseline.name = model + "/weak/01_single_gpu/ranks:1";
  baseline.stage = kBaseline;
  baseline.model = model;
  baseline.global_batch = batch;
  baseline.step_ms.median = 1;
  Run run = baseline;
  run.name = model + "/weak/03_ddp_spawn/spawn/shm/ranks:2";
  run.stage = kDistributed;
  run.launcher = "spawn";
  run.world_size = 2;
  run.global_batch = 2 * batch;
  // Of six pairs the interval is their whole range, and the estimate its middle.
  for (const double step_ms : {1.6, 1.8, 2.0, 2.0, 4 / 1.8, 2.5}) {
    baseline.repetitions.emplace_back(Repetition()).value().median_ms = 1;
    run.repetitions.emplace_back(Repetition()).value().median_ms = step_ms / speedup;
  }
  report.runs.insert(report.runs.end(), {baseline, run});
}

Report make_sweep(const std::vector<std::pair<int, double>>& speedups) {
  Report report;
  for (const auto& [width, speedup] : speedups) {
    const std::string text = std::to_string(width);
    add_pair(report, "64-" + text + "-" + text + "-10@32", 32, speedup);
  }
  return report;
}

TEST_CASE("widths of one batch and batches of one model are sweeps", "[crossover]") {
  Report report = make_sweep({{256, 1.25}, {16, 0.5}, {64, 0.8}});
  for (const auto& [batch, speedup] : {std::pair(8, 0.5), {128, 1.5}, {512, 1.75}}) {
    add_pair(report, "64-64-64-10@" + std::to_string(batch), batch, speedup);
  }
  add_pair(report, "T", 32, 0.1);
  add_pair(report, "64-1024-512-10@32", 32, 0.1);  // of two widths
  const std::vector<Crossover> found = find_crossovers(report);
  REQUIRE(found.size() == 2);
  CHECK(found[0].axis == "batch");
  CHECK(found[0].sweep == "64-64-64-10@B");
  CHECK(found[0].values.size() == 4);  // with that of the other sweep
  const Crossover& width = found[1];
  CHECK(width.axis == "width");
  CHECK(width.sweep == "64-W-W-10@32");
  CHECK(width.world_size == 2);
  REQUIRE(width.values.size() == 3);
  CHECK(width.values[0].value == 16);
  CHECK(width.values[0].run == "64-16-16-10@32/weak/03_ddp_spawn/spawn/shm/ranks:2");
  CHECK(std::abs(*width.values[0].speedup - 0.5) < 1e-9);
  CHECK(std::abs(width.values[0].ci95->low - 0.4) < 1e-9);
  CHECK(std::abs(width.values[0].ci95->high - 0.625) < 1e-9);
  // As far below 1 at 64 as above it at 256.
  CHECK(std::abs(*width.crosses_at - 128) < 1e-6);
}

TEST_CASE("a curve crosses where it stays above", "[crossover]") {
  const auto crosses_at = [](const std::vector<std::pair<int, double>>& speedups) {
    return find_crossovers(make_sweep(speedups)).at(0).crosses_at;
  };
  CHECK(crosses_at({{16, 0.5}, {64, 0.6}, {256, 0.9}}) == std::nullopt);
  CHECK(crosses_at({{16, 1.5}, {64, 1.6}, {256, 1.9}}) == std::nullopt);
  CHECK(crosses_at({{16, 0.5}, {64, 1.6}, {256, 0.9}}) == std::nullopt);
  CHECK(std::abs(*crosses_at({{16, 1.5}, {64, 0.5}, {256, 2}}) - 128) < 1e-6);
  CHECK(std::abs(*crosses_at({{16, 0.5}, {64, 1}, {256, 2}}) - 64) < 1e-6);
}

TEST_CASE("what was not measured is no point of the curve", "[crossover]") {
  Report report = make_sweep({{16, 0.5}, {64, 0.9}, {256, 2}});
  report.runs[3].repetitions.clear();  // of two ranks of the second width
  const Crossover found = find_crossovers(report).at(0);
  CHECK_FALSE(found.values[1].speedup);
  CHECK(std::abs(*found.crosses_at - 64) < 1e-6);
  report.runs.erase(report.runs.begin() + 2, report.runs.begin() + 4);
  CHECK(find_crossovers(report).empty());  // two make no curve
}

/// What is said of a sweep with these speed-ups, whose intervals reach from 0.8 to 1.25 times them.
std::string sentence_of(const std::vector<std::pair<int, double>>& speedups) {
  Report report = make_sweep(speedups);
  report.crossover = find_crossovers(report);
  std::erase_if(report.crossover, [](const Crossover& found) { return found.axis != "width"; });
  std::string text;
  for (const Conclusion& conclusion : conclude(report, {})) {
    text += conclusion.code == "crossover" ? conclusion.text : "";
  }
  return text;
}

TEST_CASE("a crossover is named only where the intervals on both sides exclude 1", "[crossover]") {
  const auto says = [](const std::vector<std::pair<int, double>>& speedups, const char* what) {
    CAPTURE(what);
    return sentence_of(speedups).find(what) != std::string::npos;
  };
  CHECK(says({{16, 0.5}, {64, 0.6}, {256, 0.7}}, "two ranks lose to one process at every width"));
  CHECK(says({{16, 1.5}, {64, 1.6}, {256, 1.9}}, "two ranks beat one process at every width"));
  CHECK(says({{16, 0.5}, {64, 0.5}, {256, 2}}, "beat one process from a width of about 128 on"));
  CHECK(says({{16, 0.5}, {64, 1.6}, {256, 0.9}}, "cannot be told"));
  CHECK(says({{16, 0.99}, {64, 1}, {256, 1.01}}, "cannot be told"));
  CHECK(says({{16, 0.9}, {64, 0.5}, {256, 2}}, "cannot be told"));
  CHECK(says({{16, 0.5}, {64, 0.5}, {256, 1.1}}, "cannot be told"));
  CHECK(says({{16, 0.5}, {64, 0.6}, {256, 0.7}}, "0.500x (0.400 to 0.625) at 16"));
}

}  // namespace
