// Reports of simulated launches with known speeds: frequency of false claims.
#include <random>
#include <regex>

#include "tests/bench/made_up_reports.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace ddp::bench;

constexpr int kReports = 1000;
constexpr int kMostFalse = kReports / 20;

/// Distribution of launches' times.
struct World {
  double effect = 1;  ///< factor on the step of all runs but stage 01 and the fastest
  double noise = 0.01;  ///< standard deviation of a launch's logarithm
  bool has_slow_mode = false;  ///< one launch in six of several ranks takes twice as long
  double drift = 0;  ///< the machine grows slower by this share in each block
  int blocks = 9;
};

/// One process, ranks in three variants, threads, and a peer. All are equally fast but for the
/// effect.
constexpr const char* kRuns = R"(
    stage    01_single_gpu  main     none   none  1x1  1
    stage    03_ddp_spawn   main     spawn  shm   2x1  2
    stage    03_ddp_spawn   by_hand  spawn  shm   2x1  2
    stage    03_ddp_spawn   main     spawn  gloo  2x1  2
    stage    01_single_gpu  main     none   none  1x2  2
    peer     pytorch        tuned    spawn  gloo  2x1  2
    control  01_single_gpu  main     none   none  1x1  1
    control  03_ddp_spawn   main     spawn  shm   2x1  2)";

/// Standard normal numbers that are the same on every platform.
double normal(std::mt19937_64& engine) {
  const auto uniform = [&] {
    return (static_cast<double>(engine() >> 11) + 0.5) / 9007199254740992.0;
  };
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::acos(-1.0) * uniform());
}

/// Number of reports, out of kReports, that ...
struct Counts {
  int significant = 0;  ///< call any difference significant
  int claims = 0;  ///< claim any difference in a sentence
  int wrong_way = 0;  ///< call a run significantly faster that is slower or equal
  int found = 0;  ///< find that by_hand is slower than the fastest
  int large = 0;  ///< have an effect of more than three times what equal commands differed by
  int unsaid = 0;  ///< of those, do not find that by_hand is slower
  int missed_fastest = 0;  ///< name another run as the fastest and do not name the fastest with it
};

/// True if a sentence has a ratio without a star, or says that ranks help or do not help.
bool claims_anything(const Report& report) {
  static const std::regex claim("[0-9]x as |[0-9]x\\)|shm help|do not help");
  static const std::regex unknown("whether [^)]*\\)");
  return std::ranges::any_of(report.sentences, [](const Sentence& sentence) {
    return std::regex_search(std::regex_replace(sentence.text, unknown, ""), claim);
  });
}

/// True for all runs but stage 01 with one thread and the fastest, and their controls.
bool is_affected(const Run& run, const std::string& fastest) {
  return run.cores() > 1 && !run.name.starts_with(fastest);
}

Counts simulate(const World& world) {
  std::mt19937_64 engine(1);
  std::mt19937_64 noise(2);
  Counts counts;
  const std::vector<Timed> runs = made_up_runs(kRuns);
  const std::string fastest = runs[1].run.name;
  for (int i = 0; i < kReports; ++i) {
    Report report;
    std::ranges::transform(runs, std::back_inserter(report.runs), &Timed::run);
    std::vector<Run*> order;
    std::ranges::transform(report.runs, std::back_inserter(order), [](Run& run) { return &run; });
    for (int block = 0; block < world.blocks; ++block) {
      // Not by std::ranges::shuffle, because its order depends on the library.
      for (std::size_t left = order.size(); left > 1; --left) {
        std::swap(order[left - 1], order[engine() % left]);
      }
      for (std::size_t place = 0; place < order.size(); ++place) {
        Run& run = *order[place];
        const bool slow = world.has_slow_mode && run.is_distributed() && engine() % 6 == 0;
        const double time = block + static_cast<double>(place) / static_cast<double>(order.size());
        add_repetition(run, block,
                       run.cores() * std::exp(world.noise * normal(noise)) * (slow ? 2 : 1) *
                           (is_affected(run, fastest) ? world.effect : 1) *
                           (1 + world.drift * time));
      }
    }
    conclude(report);
    const auto any = [&](const auto& holds) {
      return std::ranges::any_of(report.comparisons, holds) ? 1 : 0;
    };
    const auto is_slow = [&](const std::string& name) {
      return is_affected(*report.find(name), fastest);
    };
    counts.significant += any(&Comparison::significant);
    counts.wrong_way += any([&](const Comparison& one) {
      const int truth = is_slow(one.b) - is_slow(one.a);  // 1: a is faster
      return one.significant && truth != (*one.ratio > 1 ? 1 : -1);
    });
    const int found = any([](const Comparison& one) {
      return one.significant && one.kind == "best" && contains(one.b, "by_hand");
    });
    const auto equal_commands = control_factor(report, *report.find(fastest));
    const bool is_large = std::log(world.effect) > 3 * std::log(equal_commands.value());
    counts.found += found;
    counts.large += is_large ? 1 : 0;
    counts.unsaid += is_large ? 1 - found : 0;
    counts.claims += claims_anything(report) ? 1 : 0;
    const Sentence& first = report.sentences.front();
    counts.missed_fastest += std::ranges::find(first.runs, fastest) == first.runs.end() ? 1 : 0;
  }
  return counts;
}

TEST_CASE("where there is no effect, one in twenty reports at most claims one") {
  World world =
      GENERATE(World{}, World{.noise = 0.05}, World{.drift = 0.02}, World{.has_slow_mode = true});
  world.blocks = GENERATE(6, 9);
  const Counts counts = simulate(world);
  CAPTURE(world.blocks, world.noise, world.drift);
  CHECK(counts.significant <= kMostFalse);
  CHECK(counts.claims <= kMostFalse);
}

TEST_CASE("an effect of 5 % is found, and never called the other way round") {
  // The effect is not found where launches differ by more, but the opposite is not claimed.
  const World world = GENERATE(World{.effect = 1.05}, World{.effect = 1.05, .noise = 0.08},
                               World{.effect = 1.05, .noise = 0.08, .has_slow_mode = true});
  const Counts counts = simulate(world);
  CAPTURE(world.noise, world.has_slow_mode);
  CHECK(counts.wrong_way <= kMostFalse);
  CHECK(counts.missed_fastest <= kMostFalse);
  const bool is_quiet = world.noise < 0.05;
  CHECK((!is_quiet || counts.found > 0.8 * kReports));
  CHECK((!is_quiet || counts.claims > 0.8 * kReports));
}

TEST_CASE("an effect of three times what equal commands differ by is said") {
  World world = GENERATE(World{.effect = 1.05}, World{.effect = 1.3, .noise = 0.05},
                         World{.effect = 1.3, .noise = 0.02, .drift = 0.02});
  world.blocks = GENERATE(6, 9);
  const Counts counts = simulate(world);
  CAPTURE(world.noise, world.drift, world.blocks);
  CHECK(counts.large > kReports / 10);
  CHECK(counts.unsaid <= counts.large / 20);
}

}  // namespace
