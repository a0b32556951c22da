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
#include "tests/support/ranks.hpp"
#include "tests/support/report_documents.hpp"

namespace {

using namespace ddp::bench;
using ddp::test::NormalNoise;
using ddp::test::Ranks;

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

Result make_result(const char* program, Role role, int ranks) {
  Result result;
  Configuration& configuration = result.configuration;
  configuration.workload = known_workloads().front();
  configuration.program = *std::ranges::find(known_programs(), program, &StageProgram::name);
  configuration.role = role;
  configuration.world_size = ranks;
  configuration.global_batch = 32 * ranks;
  if (ranks > 1) {
    configuration.launcher = "spawn";
    configuration.backend = "shm";
  }
  result.parity.ok = true;
  return result;
}

class Simulator {
 public:
  explicit Simulator(const World& world) : world_(world) {}

  Simulation next() {
    Simulation simulation;
    Measurements measurements;
    std::vector<Result>& results = measurements.results;
    for (const Role role : {Role::kStage, Role::kControl}) {
      results.push_back(make_result(kBaseline, role, 1));
      results.push_back(make_result(kDistributed, role, 2));
    }
    results.push_back(make_result("03_ddp_spawn_by_hand", Role::kStage, 2));
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
  NormalNoise normal_{2};
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

enum class Who { kLast, kAnyInALaunch, kAnyInAStep, kNobody };

/// Which rank is late, and when.
struct Lateness {
  Who who = Who::kLast;
  int ranks = 2;
  int launches = kBlocks;
  int every = 1;  ///< in one of so many steps
  bool out_of_step = false;  ///< it comes late out of the all-reduce, and not to it
  double noise = 0;  ///< standard deviation of the logarithm of what a rank needs in a launch
};

constexpr double kLateMs = 0.5;  // where on time is 1 ms
constexpr double kCommunicationMs = 0.2;
constexpr double kPauseMs = 3;  // after an epoch
constexpr int kLateReports = 1000;
constexpr int kEpochs = 2;
constexpr int kStepsOfEpoch = 6;
constexpr int kSteps = kEpochs * kStepsOfEpoch;

/// Launches with a rank that is late, and what of them a report should say.
class LateRanks {
 public:
  explicit LateRanks(const Lateness& lateness)
      : lateness_(lateness), ranks_(static_cast<std::size_t>(lateness.ranks)) {}

  /// @param cost_ms of a step, that the others wait for the late one: mean over ranks and steps
  StageRun launch(double& wall_ms, double& cost_ms) {
    Ranks ranks(ranks_);
    const double begin_ms = ranks.now_ms();
    const std::size_t of_launch = any();
    std::vector<double> needs_ms(ranks_);
    std::ranges::generate(needs_ms, [&] { return std::exp(lateness_.noise * normal_()); });
    for (int step = 0; step < kSteps; ++step) {
      const std::size_t late = lateness_.who == Who::kLast           ? ranks_ - 1
                               : lateness_.who == Who::kAnyInALaunch ? of_launch
                                                                     : any();
      const bool is_late = lateness_.who != Who::kNobody && step % lateness_.every == 0;
      std::vector<double> compute_ms = needs_ms;
      for (double& ms : compute_ms) {
        ms *= std::exp(0.01 * normal_());
      }
      compute_ms[late] += is_late && !lateness_.out_of_step ? kLateMs : 0;
      ranks.come_out_late(late, is_late && lateness_.out_of_step ? kLateMs : 0);
      ranks.step(compute_ms, kCommunicationMs);
      const bool ends_epoch = (step + 1) % kStepsOfEpoch == 0;
      if (ends_epoch) {
        ranks.pause(kPauseMs);
      }
      const bool is_waited_for_in_a_step = !lateness_.out_of_step || !ends_epoch;
      cost_ms += is_late && is_waited_for_in_a_step
                     ? kLateMs * (lateness_.ranks - 1) / lateness_.ranks / kSteps
                     : 0;
    }
    wall_ms = ranks.now_ms() - begin_ms;
    StageRun run;
    run.metrics = ranks.read();
    return run;
  }

 private:
  std::size_t any() { return engine_() % ranks_; }

  Lateness lateness_;
  std::size_t ranks_;
  std::mt19937_64 engine_{3};
  NormalNoise normal_{4};
};

struct LateCounts {
  int named_last = 0;  ///< reports that call this rank slow
  int named_another = 0;
  int wrong_clock = 0;  ///< launches whose steps and gaps are not its wall clock within 1 %
  int wrong_communication = 0;  ///< reports that hold lateness for it
  double imbalance_over_cost = 0;  ///< of all launches together
  double least_wait_ms = 0;  ///< likewise, of a step
};

LateCounts count(const Lateness& lateness, int reports) {
  LateRanks late_ranks(lateness);
  LateCounts counts;
  double imbalance_ms = 0;
  double costs_ms = 0;
  for (int i = 0; i < reports; ++i) {
    Measurements measurements;
    Result& result =
        measurements.results.emplace_back(make_result(kDistributed, Role::kStage, lateness.ranks));
    std::vector<double> walls_ms(static_cast<std::size_t>(lateness.launches));
    for (double& wall_ms : walls_ms) {
      result.repetitions.emplace_back(late_ranks.launch(wall_ms, costs_ms));
      for (const Step& step : result.repetitions.back()->metrics.steps) {
        imbalance_ms += step.phase_ms[kImbalance] / kSteps;
        counts.least_wait_ms += step.phase_ms[kExposedComm] / kSteps / lateness.launches / reports;
      }
    }
    const Report report = make_report(measurements);
    const Run& run = report.runs.at(0);
    for (std::size_t k = 0; k < walls_ms.size(); ++k) {
      const double steps_ms = kSteps * static_cast<double>(run.global_batch) /
                              run.repetitions[k]->wall_samples_per_second.value() * 1e3;
      const double gaps_ms = kEpochs * kPauseMs;
      const bool agrees = std::abs((steps_ms + gaps_ms) / walls_ms[k] - 1) < 0.01;
      counts.wrong_clock += agrees ? 0 : 1;
    }
    // The steps around the median are as long as their ranks' own steps only about.
    const bool is_right = std::abs(*run.phases_ms[kExposedComm] / kCommunicationMs - 1) < 0.25;
    counts.wrong_communication += is_right ? 0 : 1;
    const std::string name = "Rank " + std::to_string(lateness.ranks - 1) + " of";
    for (const Conclusion& conclusion : conclude(report, {})) {
      if (conclusion.code == "slow_rank") {
        ++(conclusion.text.starts_with(name) ? counts.named_last : counts.named_another);
      }
    }
  }
  counts.imbalance_over_cost = imbalance_ms / costs_ms;
  return counts;
}

TEST_CASE("a rank that is always late is named, and what it costs is imbalance", "[simulation]") {
  constexpr int kFewer = kLateReports / 20;
  Lateness lateness;
  lateness.ranks = GENERATE(2, 4);
  lateness.out_of_step = GENERATE(false, true);
  lateness.every = GENERATE(1, 3);
  CAPTURE(lateness.ranks, lateness.out_of_step, lateness.every);
  const LateCounts counts = count(lateness, kFewer);
  CHECK(counts.wrong_clock == 0);
  CHECK(counts.wrong_communication == 0);
  CHECK(counts.imbalance_over_cost == Approx(1).margin(0.1));
  CHECK(counts.least_wait_ms == Approx(kCommunicationMs).epsilon(0.01));
  CHECK(counts.named_last == (lateness.every == 1 ? kFewer : 0));  // seldom late is not slow
  CHECK(counts.named_another == 0);
}

TEST_CASE("of ranks that are late by chance none is called slow", "[simulation]") {
  Lateness lateness;
  SECTION("another one in each launch") {
    lateness.who = Who::kAnyInALaunch;
    lateness.launches = GENERATE(6, kBlocks);
  }
  SECTION("another one in each step") {
    lateness.who = Who::kAnyInAStep;
    lateness.out_of_step = GENERATE(false, true);
  }
  SECTION("one of four in each launch") {
    lateness.who = Who::kAnyInALaunch;
    lateness.ranks = 4;
  }
  SECTION("each as much as the others") {
    lateness.who = Who::kNobody;
    lateness.noise = 0.3;
    lateness.ranks = GENERATE(2, 4);
  }
  const LateCounts counts = count(lateness, kLateReports);
  CAPTURE(lateness.ranks, lateness.launches);
  CHECK(counts.wrong_clock == 0);
  CHECK(counts.wrong_communication == 0);
  CHECK(counts.named_last + counts.named_another <= kLateReports / 20);
}

}  // namespace
