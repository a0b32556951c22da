// How bench keeps to --budget: before the timed runs, by what they are expected to take, and while
// they run.
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/run/measurement.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_bench.hpp"

namespace {

using namespace ddp::bench;

/// Takes `run_s` seconds a run.
Result make_result(const std::string& program, int repetitions, double run_s) {
  Result result;
  Configuration& configuration = result.configuration;
  configuration.workload = known_workloads().front();
  configuration.program = *find_first(
      known_programs(), [&](const StageProgram& known) { return known.name == program; });
  configuration.global_batch = configuration.parity_batch = 32;
  configuration.repetitions = repetitions;
  result.parity.ok = true;
  result.overhead_s = run_s / 4;
  result.steps_per_epoch = 10;
  result.parity_step_ms = run_s * 3 / 4 / 20 * 1e3;
  result.length = {.epochs = 2, .global_batch = 32, .dataset_size = 2048, .timed_steps = 10};
  return result;
}

Result make_peer(int repetitions, double run_s) {
  Result result = make_result(kDistributed, repetitions, run_s);
  Configuration& configuration = result.configuration;
  configuration.program = {"pytorch", "pytorch", "tuned", Start::kSpawn};
  configuration.role = Role::kPeer;
  configuration.launcher = "spawn";
  configuration.backend = "gloo";
  configuration.world_size = 2;
  return result;
}

/// The repetitions that are left, and what is said about it.
struct Kept {
  std::vector<int> repetitions;
  std::vector<std::string> notes;
  std::vector<NotRun> not_run;
};

Kept keep(const Settings& settings, std::vector<Result> results, double used_s = 0,
          double later_s = 0) {
  Plan plan;
  plan.settings = settings;
  Measurements measurements;
  measurements.results = std::move(results);
  keep_to_budget(plan, used_s, later_s, measurements);
  Kept kept = {.repetitions = {}, .notes = plan.notes, .not_run = plan.not_run};
  for (const Result& result : measurements.results) {
    kept.repetitions.push_back(result.configuration.repetitions);
  }
  return kept;
}

Settings with_budget(double budget_s) {
  Settings settings;
  settings.budget_s = budget_s;
  return settings;
}

TEST_CASE("repetitions are lowered until the runs fit, not below what an interval needs",
          "[budget]") {
  const std::vector<Result> results = {make_result(kBaseline, 9, 1),
                                       make_result("02_data_parallel", 6, 2)};
  struct Case {
    double budget_s;
    std::vector<int> repetitions;
    double used_s = 0;
    double later_s = 0;
  };
  const Case c = GENERATE(values<Case>({{21.01, {9, 6}},
                                        {20.99, {8, 6}},
                                        {21.01, {8, 6}, 1},
                                        {21.01, {7, 6}, 1, 1},
                                        {18.01, {6, 6}}}));
  CAPTURE(c.budget_s, c.used_s, c.later_s);
  const Kept kept = keep(with_budget(c.budget_s), results, c.used_s, c.later_s);
  CHECK(kept.repetitions == c.repetitions);
  CHECK(kept.notes.empty());
  CHECK(kept.not_run.empty());
}

TEST_CASE("what is more than the budget all the same is said", "[budget]") {
  const std::string expected = "these runs were expected to take ";
  Settings settings = with_budget(17);
  const auto notes = [&](const Kept& kept, const std::vector<int>& repetitions) {
    CHECK(kept.repetitions == repetitions);
    return kept.notes;
  };
  using Notes = std::vector<std::string>;
  const std::vector<Result> results = {make_result(kBaseline, 9, 1),
                                       make_result("02_data_parallel", 6, 2)};
  CHECK(notes(keep(settings, results), {6, 6}) ==
        Notes{expected + "18 s, more than the 17 s of --budget: fewer repetitions than 6 would "
                         "leave no interval"});
  std::vector<Result> failed = results;
  failed[1].error = "exit code 1";
  CHECK(notes(keep(settings, failed), {9, 6}).empty());
  settings.repetitions = 9;
  CHECK(notes(keep(settings, {make_result(kBaseline, 9, 2)}), {9}) ==
        Notes{expected + "18 s, more than the 17 s of --budget: fewer repetitions than 9 were not "
                         "asked for"});
  settings = with_budget(0.5);
  settings.quick = true;
  CHECK(notes(keep(settings, {make_result(kBaseline, 1, 1)}), {1}) ==
        Notes{expected + "1 s, more than the 0.5 s of --budget: fewer repetitions than 1 were not "
                         "asked for"});
}

TEST_CASE("a peer that nobody asked for is not timed where its starts would break the budget",
          "[budget]") {
  Settings settings = with_budget(29);
  std::vector<Result> results = {make_result(kBaseline, 9, 1), make_peer(6, 5)};
  const Kept without = keep(settings, results);
  CHECK(without.repetitions == std::vector<int>{9, 0});
  CHECK(without.notes.empty());
  CHECK(without.not_run ==
        std::vector<NotRun>{{"timing pytorch on 1 model",
                             "all runs would take 36 s, more than the 29 s of --budget: --peers "
                             "pytorch or a larger --budget adds it"}});
  const auto keeps = [](const Kept& kept, bool noted) {
    CHECK(kept.repetitions == std::vector<int>{6, 6});
    CHECK(kept.not_run.empty());
    CHECK(kept.notes.empty() == !noted);
  };
  keeps(keep(with_budget(36.01), results), false);
  keeps(keep(with_budget(30.1), results), true);  // first launches take longer
  settings.peers = {"pytorch"};
  keeps(keep(settings, results), true);
}

/// How many blocks are timed of stage 01, whose `slow_call` takes `slow_s` seconds longer.
std::size_t blocks_of(Settings settings, double used_s, double later_s, int slow_call = 0,
                      int slow_s = 0) {
  const ddp::test::FakeBench bench;
  bench.behave(kBaseline, "[ $(wc -l < \"$0.calls\") != " + std::to_string(slow_call) +
                              " ] || sleep " + std::to_string(slow_s));
  Plan plan;
  settings.device = "cpu";
  settings.stage_dir = bench.bin().string();
  plan.settings = settings;
  Session session;
  Measurements measurements;
  measurements.results = {make_result(kBaseline, settings.most_repetitions(), 1)};
  measure(plan, session, used_s, later_s, measurements);
  const Result& result = measurements.results[0];
  INFO(result.error);
  CHECK(result.was_measured());
  CHECK_FALSE(measurements.partial);
  // Those that were left out are as if they had never been planned.
  CHECK(measurements.blocks() == std::ssize(result.repetitions));
  return result.repetitions.size();
}

TEST_CASE("blocks that would not end within the budget are left out", "[budget]") {
  Settings settings = with_budget(1000);
  CHECK(blocks_of(settings, 0, 0) == 9);
  CHECK(blocks_of(settings, 1000, 0) == 6);
  CHECK(blocks_of(settings, 0, 1000) == 6);
  CHECK(blocks_of(settings, 500, 501) == 6);
  settings.full = true;
  CHECK(blocks_of(settings, 1000, 0) == 6);
  settings.full = false;
  settings.repetitions = 8;
  CHECK(blocks_of(settings, 1000, 0) == 8);
}

TEST_CASE("a block is taken to last as long as the one before it", "[budget]") {
  // The sixth takes 2 s, so at least 4 would be over after the seventh.
  CHECK(blocks_of(with_budget(3), 0, 0, 6, 2) == 6);
  // What the seventh takes nobody knows before it.
  CHECK(blocks_of(with_budget(4), 0, 0, 7, 4) == 7);
}

}  // namespace
