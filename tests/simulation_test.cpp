// Reports of launches that never were, whose truth is known: how often do they say what is not so?
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/report/conclusions.hpp"
#include "bench/report/verdict.hpp"
#include "bench/run/results.hpp"
#include "tests/catch.hpp"
#include "tests/support/report_documents.hpp"

namespace {

using namespace ddp::bench;

constexpr int kReports = 1000;
constexpr int kMostFalse = kReports / 20;
constexpr int kBlocks = 9;

const std::string kMain = "T/weak/03_ddp_spawn/spawn/shm/ranks:2";
const std::string kByHand = "T/weak/03_ddp_spawn_by_hand/spawn/shm/ranks:2";

/// How launches take their time.
struct World {
  double effect = 1;  ///< a step of by_hand takes so many times that of main
  double noise = 0.01;  ///< standard deviation of a launch's logarithm
  bool has_slow_mode = false;  ///< one launch in six of several ranks takes twice as long
  bool all_have_it = false;  ///< one in a hundred of any program does
  double drift = 0;  ///< by so much the machine grows slower in each block
};

struct Simulation {
  Report report;
  int slow_launches = 0;  ///< that were made
};

class Simulator {
 public:
  explicit Simulator(const World& world) : world_(world) {}

  Simulation next() {
    const auto program = [](const char* name) {
      return *std::ranges::find(known_programs(), name, &StageProgram::name);
    };
    Simulation simulation;
    Measurements measurements;
    std::vector<Result>& results = measurements.results;
    for (const Role role : {Role::kStage, Role::kControl}) {
      results.push_back(make_result(program(kBaseline), role));
      results.push_back(make_result(program("03_ddp_spawn"), role));
    }
    results.push_back(make_result(program("03_ddp_spawn_by_hand"), Role::kStage));
    std::vector<Result*> order;
    std::ranges::transform(results, std::back_inserter(order), [](Result& r) { return &r; });
    for (int block = 0; block < kBlocks; ++block) {
      std::ranges::shuffle(order, engine_);
      for (std::size_t place = 0; place < order.size(); ++place) {
        const double blocks =
            block + static_cast<double>(place) / static_cast<double>(order.size());
        order[place]->repetitions.emplace_back(launch(*order[place], blocks, simulation));
      }
    }
    simulation.report = make_report(measurements);
    simulation.report.conclusions = conclude(simulation.report, {});
    return simulation;
  }

 private:
  static Result make_result(const StageProgram& program, Role role) {
    Result result;
    Configuration& configuration = result.configuration;
    configuration.workload = known_workloads().front();
    configuration.program = program;
    configuration.role = role;
    configuration.world_size = program.start == Start::kAlone ? 1 : 2;
    configuration.global_batch = 32 * configuration.world_size;
    if (program.start == Start::kSpawn) {
      configuration.launcher = "spawn";
      configuration.backend = "shm";
    }
    result.parity.ok = true;
    return result;
  }

  StageRun launch(const Result& result, double blocks, Simulation& simulation) {
    const Configuration& configuration = result.configuration;
    const bool slow = world_.all_have_it ? engine_() % 100 == 0
                                         : configuration.communicates() && world_.has_slow_mode &&
                                               engine_() % 6 == 0;
    simulation.slow_launches += slow ? 1 : 0;
    const double typical_ms = std::exp(world_.noise * normal_()) * (slow ? 2 : 1) *
                              (configuration.program.variant == "by_hand" ? world_.effect : 1) *
                              (1 + world_.drift * blocks);
    StageRun run;
    for (const double share : {0.98, 0.99, 1.0, 1.01, 1.02}) {
      Step step;
      step.step_ms = typical_ms * share;
      run.metrics.steps.push_back(step);
    }
    return run;
  }

  World world_;
  std::mt19937_64 engine_{1};
  ddp::test::NormalNoise normal_{2};
};

struct Counts {
  std::map<std::string, int> verdicts;  ///< on by_hand against main; "": none
  std::map<std::string, int> judged;  ///< the same without a word from the controls
  int told_apart = 0;
  int blamed_communication = 0;
  int slow_mode_unreported = 0;
  int wrong_slow_count = 0;
};

Counts count(const World& world) {
  Simulator simulator(world);
  Counts counts;
  for (int i = 0; i < kReports; ++i) {
    const Simulation simulation = simulator.next();
    const Report& report = simulation.report;
    for (const Comparison& comparison : report.comparisons) {
      if (comparison.kind == "variant") {
        ++counts.verdicts[comparison.verdict.value_or("")];
        ++counts.judged[judge(comparison.ci95, 1).value_or("")];
      }
    }
    const auto speed = speed_ratio(report, *report.find(kByHand), *report.find(kMain));
    counts.told_apart += speed.value().is_told_apart ? 1 : 0;
    std::int64_t found = 0;
    for (const Run& run : report.runs) {
      found += run.slow_launches.k;
    }
    const bool reported = std::ranges::find(report.conclusions, "slow_launches",
                                            &Conclusion::code) != report.conclusions.end();
    counts.blamed_communication +=
        std::ranges::any_of(report.conclusions, [](const Conclusion& conclusion) {
          return conclusion.text.find("only launches that communicate") != std::string::npos;
        });
    counts.slow_mode_unreported += simulation.slow_launches > 0 && !reported ? 1 : 0;
    counts.wrong_slow_count += found == simulation.slow_launches ? 0 : 1;
  }
  return counts;
}

TEST_CASE("where there is no effect, one in twenty reports at most names one", "[simulation]") {
  World world;
  SECTION("on a quiet machine") {
    Counts quiet = count(world);
    CHECK(quiet.verdicts["same"] > 0.9 * kReports);  // and not for want of any verdict
  }
  SECTION("on a noisy one") {
    world.noise = 0.05;
  }
  SECTION("on one that grows slower all the time") {
    world.drift = 0.02;
  }
  SECTION("with a slow mode in one launch of six") {
    world.has_slow_mode = true;
  }
  Counts counts = count(world);
  CAPTURE(counts.verdicts["faster"], counts.verdicts["slower"]);
  CHECK(counts.verdicts["faster"] + counts.verdicts["slower"] <= kMostFalse);
  // Not because the controls rarely let anything be said.
  CHECK(counts.judged["faster"] + counts.judged["slower"] <= kMostFalse);
  CHECK(counts.told_apart <= kMostFalse);
}

TEST_CASE("an effect of 5 % is found, and never called the other way round", "[simulation]") {
  World world = {.effect = 1.05};
  Counts counts = count(world);
  CHECK(counts.verdicts["faster"] + counts.verdicts["same"] <= kMostFalse);
  CHECK(counts.verdicts["slower"] > 0.8 * kReports);
  world.noise = 0.05;  // too noisy to be found, which is no reason to deny it
  counts = count(world);
  CHECK(counts.verdicts["faster"] + counts.verdicts["same"] <= kMostFalse);
}

TEST_CASE("a slow mode is reported whenever it shows, with its launches counted", "[simulation]") {
  const Counts counts = count({.has_slow_mode = true});
  CHECK(counts.slow_mode_unreported == 0);
  CHECK(counts.wrong_slow_count <= kMostFalse);  // all launches of one program may be slow
  CHECK(counts.blamed_communication > 0.2 * kReports);  // from six slow ones of 45 on
  const Counts none = count({.noise = 0.05});
  CHECK(none.wrong_slow_count <= kMostFalse);
  // Where any program's launches are slow now and then, communication is not to blame.
  CHECK(count({.all_have_it = true}).blamed_communication <= kMostFalse);
}

}  // namespace
