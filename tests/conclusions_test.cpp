// What is said of made-up reports, word by word, and when nothing is said.
#include "bench/report/conclusions.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/report/record.hpp"
#include "bench/report/verdict.hpp"
#include "tests/catch.hpp"

namespace {

using namespace ddp::bench;
using Texts = std::vector<std::string>;

const std::string kOne = "T/weak/01_single_gpu/none/ranks:1";
const std::string kTwo = "T/weak/03_ddp_spawn/spawn/ranks:2";

/// In six blocks a step takes `step_ms`, in each times its factor; stage 01's is taken to take
/// 1 ms. Of six pairs the interval is the whole range.
Run make_run(const std::string& stage, const std::string& launcher, int world_size, double step_ms,
             const std::vector<double>& factors = {1, 1, 1, 1, 1, 1}) {
  Run run;
  run.name = "T/weak/" + stage + "/" + launcher + "/ranks:" + std::to_string(world_size);
  run.stage = stage;
  run.launcher = launcher;
  run.model = "T";
  run.world_size = world_size;
  run.global_batch = 32 * world_size;
  run.parity.ok = true;
  run.step_ms = {.median = step_ms, .p10 = step_ms, .p90 = step_ms, .p95 = step_ms, .n = 60};
  run.samples_per_second = 32 * world_size / step_ms * 1e3;
  run.relative_speedup = world_size / step_ms;
  for (const double factor : factors) {
    run.repetitions.emplace_back(Repetition()).value().median_ms = step_ms * factor;
  }
  return run;
}

Run make_peer(const std::string& peer, const std::string& variant, double step_ms) {
  Run run = make_run(peer, "spawn", 2, step_ms);
  run.name += "/" + variant;
  run.kind = "peer";
  run.variant = variant;
  return run;
}

void add_control(Report& report, const std::string& original, const Interval& ci95) {
  Run control = *report.find(original);
  control.kind = "control";
  control.name += "/control";
  report.runs.push_back(control);
  report.comparisons.push_back({.kind = "control", .a = control.name, .b = original, .ci95 = ci95});
}

/// Stage 01 and these, with controls that differ by at most 1 %.
Report report_of(const std::vector<Run>& others) {
  Report report;
  report.runs = {make_run(kBaseline, "none", 1, 1)};
  append(report.runs, others);
  add_control(report, kOne, {0.99, 1.01});
  const Run* const several =
      find_first(others, [](const Run& run) { return run.keeps_several_busy(); });
  if (several != nullptr) {
    add_control(report, several->name, {0.99, 1.01});
  }
  return report;
}

Report two_ranks(double step_ms, const std::vector<double>& factors = {1, 1, 1, 1, 1, 1}) {
  return report_of({make_run(kDistributed, "spawn", 2, step_ms, factors)});
}

Texts said(const Report& report, const std::string& code, const Texts& notes = {}) {
  Texts texts;
  for (const Conclusion& conclusion : conclude(report, notes)) {
    if (conclusion.code == code) {
      texts.push_back(conclusion.text);
    }
  }
  return texts;
}

TEST_CASE("two runs are told apart by more than equal commands differ by", "[conclusions]") {
  Report report = two_ranks(GENERATE(1.9, 2.1));
  const auto told = [&] {
    const bool one_way = speed_ratio(report, report.runs[1], report.runs[0])->is_told_apart;
    CHECK(speed_ratio(report, report.runs[0], report.runs[1])->is_told_apart == one_way);
    return one_way;
  };
  const Interval close = {0.99, 1.01};
  const auto with = [&](const Interval& of_one, const Interval& of_several) {
    report.comparisons[0].ci95 = of_one;
    report.comparisons[1].ci95 = of_several;
    return told();
  };
  for (const Interval& wide : {Interval{0.94, 1}, Interval{1, 1.06}}) {
    CHECK(with(close, close));
    CHECK_FALSE(with(wide, close));
    CHECK_FALSE(with(close, wide));
    CHECK(with(close, close));
    add_control(report, kTwo, wide);
    report.runs.back().name = report.comparisons.back().a = "another/control";
    report.runs.back().model = "M";
    CHECK(told());
    report.runs.back().model = "T";
    CHECK_FALSE(told());
    std::swap(report.comparisons[1].ci95, report.comparisons.back().ci95);
    CHECK_FALSE(told());  // whichever comes last
    report.runs.pop_back();
    report.comparisons.pop_back();
  }
  report.comparisons[1].ci95.reset();
  CHECK_FALSE(told());
}

TEST_CASE("the fastest is named with what is not told apart from it", "[conclusions]") {
  CHECK(said(two_ranks(1.25), "fastest") ==
        Texts{"T: most samples/s: 03_ddp_spawn on two ranks; slower: 01_single_gpu (one process) "
              "0.625x (0.625 to 0.625)."});
  CHECK(said(two_ranks(1.98, {0.98, 1, 1, 1, 1, 1.02}), "fastest") ==
        Texts{"T: most samples/s: 03_ddp_spawn on two ranks; not told apart from it: "
              "01_single_gpu (one process) 0.990x (0.970 to 1.01)."});
  CHECK(said(report_of({}), "fastest") == Texts{"T: most samples/s: 01_single_gpu (one process)."});
  CHECK(said(two_ranks(4, {1, 1}), "fastest") ==
        Texts{"T: most samples/s: 01_single_gpu (one process); not told apart from it: "
              "03_ddp_spawn on two ranks 0.500x (too few repetitions for an interval)."});
}

TEST_CASE("the fastest is so within blocks, whatever the medians of all steps say",
          "[conclusions]") {
  Report report = two_ranks(1.25);
  report.runs[1].samples_per_second = 1;
  const Conclusion fastest = conclude(report, {}).at(0);
  CHECK(fastest.code == "fastest");
  CHECK(fastest.runs == Texts{kTwo});
}

TEST_CASE("of many equals and slower ones few are named", "[conclusions]") {
  Run multinode = make_run(kMultinode, "srun", 4, 4.01);
  multinode.nodes = 2;
  Run threads = make_run(kBaseline, "none", 1, 1.004);
  threads.name += "/threads";
  threads.threads = 2;
  Run by_hand = make_run(kDistributed, "spawn", 2, 3);
  by_hand.variant = "by_hand";
  const Report report =
      report_of({make_run("02_data_parallel", "none", 2, 2.002),
                 make_run("04_ddp_launcher", "mpirun", 2, 2.006), threads, multinode, by_hand,
                 make_run("04_ddp_launcher", "srun", 2, 4), make_peer("pytorch", "tuned", 0.1)});
  CHECK(said(report, "fastest") ==
        Texts{"T: most samples/s: 01_single_gpu (one process); not told apart from it: "
              "02_data_parallel on two replicas 0.999x (0.999 to 0.999), "
              "05_multinode under srun on four ranks, two nodes 0.998x (0.998 to 0.998), "
              "04_ddp_launcher under mpirun on two ranks 0.997x (0.997 to 0.997) and 1 more; "
              "slower: 03_ddp_spawn_by_hand on two ranks 0.667x (0.667 to 0.667)."});
  CHECK(conclude(report, {}).at(0).runs.size() == 5);
}

TEST_CASE("where nothing has a speed nothing is the fastest", "[conclusions]") {
  Report report = report_of({make_peer("pytorch", "tuned", 1)});
  report.runs[0].error = "exit code 1";
  report.runs[0].scaling = report.runs[1].scaling = "strong";
  CHECK(said(report, "fastest") == Texts{"T, strong scaling: nothing could be measured."});
  for (const char* code : {"ranks", "bound", "peer", "threads", "startup", "slow_launches"}) {
    CAPTURE(code);
    CHECK(said(report, code).empty());
  }
}

TEST_CASE("ranks beat one process, lose to it, or it cannot be told", "[conclusions]") {
  const auto of = [](const Report& report) { return said(report, "ranks"); };
  CHECK(of(two_ranks(1.25)) == Texts{"T: two ranks of 03_ddp_spawn beat one process, 1.60x (1.60 "
                                     "to 1.60), efficiency 0.80."});
  CHECK(of(two_ranks(4)) == Texts{"T: two ranks of 03_ddp_spawn lose to one process, 0.500x (0.500 "
                                  "to 0.500), efficiency 0.25."});
  CHECK(of(two_ranks(2, {0.98, 1, 1, 1, 1, 1.04})) ==
        Texts{"T: whether two ranks of 03_ddp_spawn beat one process cannot be told, 1.00x (0.962 "
              "to 1.02), efficiency 0.50."});
  CHECK(of(report_of({make_run("02_data_parallel", "none", 2, 4)})) ==
        Texts{"T: two replicas of 02_data_parallel lose to one process, 0.500x (0.500 to 0.500), "
              "efficiency 0.25."});
  CHECK(of(report_of({make_peer("pytorch", "tuned", 1)})).empty());
  Report without_baseline = two_ranks(1.25);
  without_baseline.runs[0].error = "exit code 1";
  CHECK(of(without_baseline).empty());
}

TEST_CASE("of each world size the best ranks are named, and the best replicas", "[conclusions]") {
  const Report report = report_of(
      {make_run("04_ddp_launcher", "mpirun", 2, 1.5), make_run(kDistributed, "spawn", 2, 1.25),
       make_run("04_ddp_launcher", "srun", 2, 1.5), make_run(kDistributed, "spawn", 4, 2),
       make_run("02_data_parallel", "none", 2, 1.6)});
  Texts named;
  for (const Conclusion& conclusion : conclude(report, {})) {
    if (conclusion.code == "ranks") {
      append(named, conclusion.runs);
    }
  }
  CHECK(named ==
        Texts{kTwo, "T/weak/03_ddp_spawn/spawn/ranks:4", "T/weak/02_data_parallel/none/ranks:2"});
}

TEST_CASE("where the rest of a low efficiency goes is said by the phase that grew most",
          "[conclusions]") {
  struct Case {
    const char* stage;
    PhaseTimes phases_ms;  // data, forward, backward, exposed, imbalance, optimizer
    const char* reason;
    double step_ms = 2;
    std::optional<double> bytes = 84;
    const char* variant = "main";
  };
  const char* const waits =
      ": 60 % of its step waits for the all-reduce of 84 bytes, while forward, backward and update "
      "together take only 0.600 ms.";
  const Case c = GENERATE_COPY(values<Case>({
      {kDistributed, {0.1, 0.2, 0.3, 1.2, 0.1, 0.1}, waits},
      {kDistributed, {0.1, 0.2, 0.3, 1.2, 0.1, 0.1}, waits, 1.26},
      {kDistributed, {0.1, 0.2, 0.3, 1.2, 0.1, 0.1}, ".", 1.24},  // of an efficiency from 0.8
      {kDistributed,
       {0.1, 0.5, 0.7, 1.2, 0.4, 0.1},
       ": 40 % of its step waits for the all-reduce, while forward, backward and update together "
       "take 1.30 ms.",
       3,
       std::nullopt},
      {kDistributed,
       {0.1, 0.2, 0.3, 0.3, 1, 0.1},
       ": 50 % of its step is waiting for ranks that come late."},
      {kDistributed,
       {0.1, 1.4, 0.3, 0.1, std::nullopt, 0.1},
       ": forward takes 1.40 ms instead of 0.200 ms."},
      {"02_data_parallel",
       {0.1, 1.4, 0.3, 0, 0, 0.1},
       ": forward takes 1.40 ms instead of 0.200 ms, where the batch is split, the replicas get "
       "the weights and the outputs are collected."},
      {"02_data_parallel",
       {0.1, 0.2, 1.4, 0, 0, 0.1},
       ": backward takes 1.40 ms instead of 0.300 ms, where the gradients of all replicas are "
       "computed and added up."},
      {"02_data_parallel",
       {0.1, 0.2, 1.4, 0, 0, 0.1},
       ": backward takes 1.40 ms instead of 0.300 ms.",
       2,
       0,
       "mirrored"},
      {"02_data_parallel",
       {0.1, 0.2, 0.3, 0, 0, 1.4},
       ": optimizer takes 1.40 ms instead of 0.100 ms."},
      {kDistributed, {0.1, 0.2, 0.3, 0, 0, 0.1}, "."},  // nothing grew
      {kDistributed, {0.1, 0.2, 0.3, std::nullopt, 0, 1.4}, "."},  // what is not known grew, maybe
  }));
  CAPTURE(c.stage, c.reason);
  const bool replicas = c.stage != std::string(kDistributed);
  Report report = report_of({make_run(c.stage, replicas ? "none" : "spawn", 2, c.step_ms)});
  report.runs[0].phases_ms = {0.1, 0.2, 0.3, 0, 0, 0.1};
  report.runs[1].phases_ms = c.phases_ms;
  report.runs[1].comm.bytes_per_step = c.bytes;
  report.runs[1].variant = c.variant;
  const std::string text = said(report, "ranks").at(0);
  CAPTURE(text);
  CHECK(text.substr(std::min(text.size(), text.rfind("efficiency ") + 15)) == c.reason);
}

TEST_CASE("what being distributed costs is told by one rank", "[conclusions]") {
  const auto of_one_rank = [](double step_ms, const char* stage = kDistributed) {
    Report report = report_of({make_run(stage, "spawn", 1, step_ms)});
    report.comparisons.push_back({.a = report.runs[1].name,
                                  .b = kOne,
                                  .ratio_median = step_ms,
                                  .ci95 = Interval{step_ms, step_ms}});
    return said(report, "ranks");
  };
  const std::string begin = "T: one rank of 03_ddp_spawn takes ";
  CHECK(of_one_rank(1.1) ==
        Texts{begin + "1.10x (1.10 to 1.10) the step of 01_single_gpu: that is what being "
                      "distributed costs."});
  CHECK(of_one_rank(0.9) ==
        Texts{begin + "0.900x (0.900 to 0.900) the step of 01_single_gpu: it is faster."});
  CHECK(of_one_rank(1.005) ==
        Texts{begin + "1.00x (1.00 to 1.00) the step of 01_single_gpu: whether being distributed "
                      "costs anything cannot be told."});
  CHECK(said(report_of({make_run(kDistributed, "spawn", 1, 1.1)}), "ranks").empty());
}

TEST_CASE("what bounds a step is said of the fastest process alone and of the fastest of several",
          "[conclusions]") {
  Report report = report_of({make_run("04_ddp_launcher", "mpirun", 2, 1.5),
                             make_run(kDistributed, "spawn", 2, 1.25),
                             make_run("02_data_parallel", "none", 2, 1)});
  CHECK(said(report, "bound").empty());
  for (Run& run : report.runs) {
    run.bound = "overhead";
    run.floor_ms = 0.05;
  }
  report.runs[0].bound = "memory";
  CHECK(said(report, "bound") ==
        Texts{"T: 01_single_gpu (one process) by memory (a step takes 20.0x the floor); "
              "03_ddp_spawn on two ranks by overhead."});
  report.runs[0].bound.reset();
  CHECK(said(report, "bound") == Texts{"T: 03_ddp_spawn on two ranks by overhead."});
}

TEST_CASE("the same cores as threads are compared with one process", "[conclusions]") {
  const auto of_threads = [](double step_ms) {
    Run threads = make_run(kBaseline, "none", 1, step_ms);
    threads.name += "/threads:2";
    threads.threads = 2;
    threads.global_batch = 64;
    return said(report_of({threads}), "threads");
  };
  CHECK(of_threads(1.25) == Texts{"T: two threads of one process handle 1.60x (1.60 to 1.60) the "
                                  "samples/s of one."});
  CHECK(of_threads(2.01) == Texts{"T: two threads of one process handle 0.995x (0.995 to 0.995) "
                                  "the samples/s of one, not told apart, but equal commands "
                                  "differed by up to 1.01x."});
  CHECK(said(two_ranks(1), "threads").empty());
  Run threads = make_run(kBaseline, "none", 1, 1.25);
  threads.name += "/threads:2";
  threads.threads = 2;
  Report report = report_of({threads});
  CHECK(speed_ratio(report, report.runs[1], report.runs[0])->is_told_apart);
  report.comparisons.pop_back();  // that of one thread says nothing of two
  CHECK_FALSE(speed_ratio(report, report.runs[1], report.runs[0])->is_told_apart);
}

TEST_CASE("the fastest stage is held against each peer at its best", "[conclusions]") {
  const Run main = make_run(kDistributed, "spawn", 2, 1.25);
  const Run launched = make_run("04_ddp_launcher", "mpirun", 2, 1.5);
  CHECK(said(report_of({launched, main, make_peer("pytorch", "default", 4),
                        make_peer("pytorch", "tuned", 2), make_peer("c10d", "reducer", 1.255)}),
             "peer") ==
        Texts{"T: two ranks: 03_ddp_spawn handles 1.00x (1.00 to 1.00) the samples/s of c10d "
              "reducer, not told apart, but equal commands differed by up to 1.01x.",
              "T: two ranks: 03_ddp_spawn handles 1.60x (1.60 to 1.60) the samples/s of pytorch "
              "tuned."});
  Run failed = make_peer("pytorch", "tuned", 2);
  failed.error = "parity";
  CHECK(said(report_of({main, failed}), "peer").empty());
  Run more_ranks = make_peer("pytorch", "tuned", 2);
  more_ranks.world_size = 4;
  CHECK(said(report_of({main, more_ranks}), "peer").empty());
  Run replicas = make_peer("tensorflow", "mirrored", 2);
  replicas.launcher = "none";
  CHECK(said(report_of({main, replicas}), "peer").empty());
  CHECK(said(report_of({main, replicas, make_run("02_data_parallel", "none", 2, 1)}), "peer") ==
        Texts{"T: two replicas: 02_data_parallel handles 2.00x (2.00 to 2.00) the samples/s of "
              "tensorflow mirrored."});
}

TEST_CASE("whose step is another's is said if both have the same weights", "[conclusions]") {
  Report report = two_ranks(1.25);
  const auto add = [&](const std::string& program) {
    report.parity_only.push_back(
        {.name = program + "/shm/ranks:2", .same_step_as = kTwo, .ok = true});
  };
  add("T/weak/04_ddp_launcher/mpirun");
  add("M/weak/04_ddp_launcher/mpirun");
  add("T/weak/05_multinode/torchrun");
  add("T/weak/02_data_parallel_mirrored/none");
  report.parity_only.back().same_step_as.reset();
  add("T/weak/04_ddp_launcher_accelerated/mpirun");
  report.parity_only.back().ok = false;
  CHECK(said(report, "same_step") ==
        Texts{"The step of 03_ddp_spawn is also that of 04_ddp_launcher under mpirun, 05_multinode "
              "under torchrun, and its weights moved as far (checked): choose by what starts "
              "your processes."});
  report.runs[1].parity.ok = false;
  CHECK(said(report, "same_step").empty());
}

TEST_CASE("trainings to an accuracy are one sentence a dataset, the quickest first",
          "[conclusions]") {
  Report report;
  CHECK(said(report, "time_to_accuracy").empty());
  const TimeToAccuracy one = {
      .dataset = "digits", .target = 0.95, .program = kBaseline, .global_batch = 32};
  TimeToAccuracy timed = one;
  timed.world_size = 2;
  timed.global_batch = 64;
  timed.scale_lr = true;
  timed.epochs = 5;
  timed.seconds = {.median = 1.2, .p10 = 1.1, .p90 = 1.3, .p95 = 1.4, .n = 6};
  timed.seconds_with_start = {.median = 1.5, .p10 = 1.4, .p90 = 1.6, .p95 = 1.7, .n = 6};
  TimeToAccuracy quicker = timed;
  quicker.scale_lr = false;
  quicker.seconds = {.median = 1.25, .p10 = {}, .p90 = {}, .p95 = {}, .n = 1};
  quicker.seconds_with_start = {.median = 1.4, .p10 = {}, .p90 = {}, .p95 = {}, .n = 1};
  TimeToAccuracy not_timed = one;
  not_timed.epochs = 3;
  TimeToAccuracy failed = one;
  failed.dataset = "fashion-mnist";
  failed.error = "after at most 16 epochs the accuracy was 0.8751";
  report.time_to_accuracy = {one, timed, not_timed, failed, quicker};
  CHECK(said(report, "time_to_accuracy") ==
        Texts{"digits to 95 %: two ranks at a global batch of 64 take 1.40 s from the command, "
              "1.25 s of it for 5 epochs; "
              "two ranks at a global batch of 64 and 2x the learning rate take 1.50 s "
              "(p10 1.40, p90 1.60) from the command, 1.20 s of it for 5 epochs; "
              "one process at a global batch of 32 has no answer (not searched); "
              "one process at a global batch of 32 gets there in 3 epochs, which were not timed.",
              "fashion-mnist to 95 %: one process at a global batch of 32 has no answer (after at "
              "most 16 epochs the accuracy was 0.8751)."});
}

TEST_CASE("what a start costs is said where there are several ways to start", "[conclusions]") {
  Report report =
      report_of({make_run(kDistributed, "spawn", 2, 1.25), make_run(kDistributed, "spawn", 4, 1.25),
                 make_peer("pytorch", "tuned", 1)});
  for (Run& run : report.runs) {
    run.startup_ms = run.is_peer() || run.is_control() ? 9000 : 800;
  }
  report.runs[0].startup_ms = 300;
  report.runs[2].startup_ms = 900;
  CHECK(
      said(report, "startup") ==
      Texts{"From the command to the end of the first step: one process 0.300 s, spawn 0.850 s."});
  report.runs[0].startup_ms.reset();
  CHECK(said(report, "startup").empty());
}

TEST_CASE("launches that were slow as a whole are counted by whether they communicate",
          "[conclusions]") {
  const auto of = [](const SlowLaunches& communicating, const SlowLaunches& others) {
    Report report;
    report.runs = {make_run(kBaseline, "none", 1, 1), make_run("02_data_parallel", "none", 2, 1),
                   make_run(kDistributed, "spawn", 2, 1), make_run(kDistributed, "spawn", 4, 1)};
    report.runs[1].slow_launches = others;
    report.runs[2].slow_launches = {0, 9};
    report.runs[3].slow_launches = communicating;
    report.runs[3].wall_samples_per_second = 12345;
    return said(report, "slow_launches");
  };
  CHECK(of({0, 9}, {0, 9}).empty());
  const std::string begin =
      "Launches slower as a whole, over 1.50 times the fastest of the same command: ";
  const std::string most =
      "; most in T/weak/03_ddp_spawn/spawn/ranks:4, 3 of 9: 12,345 samples/s by the clock, 128,000 "
      "in the median step.";
  const std::string only = ", so only launches that communicate show it";
  // By chance in one of 19.9 reports: 18 x 17 x 16 of 47 x 46 x 45 choices; and in one of 21.2.
  CHECK(of({3, 9}, {0, 29}) == Texts{begin + "3 of 18 that communicate, 0 of 29 others" + most});
  CHECK(of({3, 9}, {0, 30}) ==
        Texts{begin + "3 of 18 that communicate, 0 of 30 others" + only + most});
  CHECK(of({3, 9}, {1, 99}) == Texts{begin + "3 of 18 that communicate, 1 of 99 others" + most});
}

TEST_CASE("launches beside other programs or virtual machines are counted", "[conclusions]") {
  Report report = two_ranks(1.25);
  const auto launch = [&](std::size_t block) -> Repetition& {
    return report.runs[1].repetitions[block].value();
  };
  report.runs[1].repetitions[5].reset();
  launch(0).others_busy_share = 0.09;
  CHECK(said(report, "disturbed").empty());
  launch(1).others_busy_share = 0.06;
  launch(1).steal_share = 0.05;
  launch(2).steal_share = 0.25;
  CHECK(said(report, "disturbed") ==
        Texts{"2 of 3 launches ran beside other programs, or virtual machines, that took 10 % or "
              "more of the processors' time, up to 25 %."});
}

TEST_CASE("runs that failed, are noisy or have no spread are named", "[conclusions]") {
  Report report = report_of({make_run(kDistributed, "spawn", 2, 1), make_run("a", "spawn", 2, 1),
                             make_run("b", "spawn", 2, 1), make_run("c", "spawn", 2, 1)});
  for (const char* code : {"failed", "noisy", "no_spread", "slow_rank", "disturbed"}) {
    CAPTURE(code);
    CHECK(said(report, code).empty());
  }
  report.runs[0].step_ms.p90 = 2.0;  // as much as p10 twice is not noisy
  report.runs[1].step_ms.p90 = 2.1;
  CHECK(said(report, "noisy") == Texts{"Noisy, p90 of the steps more than 2x p10: " + kTwo + "."});
  report.runs[2].step_ms.p10.reset();
  CHECK(said(report, "no_spread") ==
        Texts{"Fewer than 5 steps, so no spread: T/weak/a/spawn/ranks:2."});
  for (Run& run : report.runs) {  // controls do not count
    run.error = "exit code 1";
  }
  report.parity_only = {{.name = "T/weak/d", .ok = true}, {.name = "T/weak/e"}};
  const Conclusion failed = conclude(report, {}).at(1);
  CHECK(failed.code == "failed");
  CHECK(failed.text == "6 of 7 configurations failed (see their errors): " + kOne + ", " + kTwo +
                           ", T/weak/a/spawn/ranks:2 and 3 more.");
  CHECK(failed.runs.size() == 6);
  CHECK(said(report, "noisy").empty());
  CHECK(said(report, "no_spread").empty());
}

TEST_CASE("a rank is slow if it is most often the busiest, and by much", "[conclusions]") {
  Report report = two_ranks(1);
  const auto with = [&](const std::optional<Interval>& excess_ci95) {
    report.runs[1].slowest_rank = {
        .rank = 1, .share_of_steps = 0.8, .median_excess = 0.2, .excess_ci95 = excess_ci95};
    return said(report, "slow_rank");
  };
  CHECK(with(Interval{0.1, 0.3}) ==
        Texts{"Rank 1 of " + kTwo +
              " is slow: the busiest in 80 % of the steps, needing 20 % (10 % to 30 %) more than "
              "the others besides waiting."});
  CHECK(with(Interval{0.09, 0.3}).empty());
  CHECK(with(std::nullopt).empty());
}

TEST_CASE("controls say what verdicts are worth", "[conclusions]") {
  Report report = two_ranks(1.25);
  report.comparisons[0].verdict = "same";
  report.comparisons.push_back({.a = kTwo, .b = kOne});
  CHECK(said(report, "no_control").empty());
  const std::string hold =
      "Equal commands differed by at most 3 %, interval and all (A/A controls)";
  CHECK(said(report, "controls") == Texts{hold + "."});
  report.comparisons.back().verdict = "faster";
  CHECK(said(report, "controls") == Texts{hold + ", so the verdicts stand."});
  report.comparisons[0].ci95 = Interval{0.99, 1.04};
  CHECK(said(report, "controls") ==
        Texts{"Equal commands (A/A controls: a command run twice in each block) ought to have a "
              "ratio of 1; its interval: 0.990 to 1.04 (" +
              kOne + "), 0.990 to 1.01 (" + kTwo +
              "). A smaller difference between two programs is not believed; where that is more "
              "than 3 % the document has no verdict."});
  const auto none_with = [&](const std::string& kinds) {
    return Texts{
        "No verdict without an A/A control, the same command once more in 6 blocks or "
        "more: none was measured with " +
        kinds + "."};
  };
  report.comparisons[1].ci95.reset();
  CHECK(said(report, "no_control") == none_with("several processes (T weak)"));
  report.comparisons[0].ci95.reset();
  CHECK(said(report, "controls").empty());
  CHECK(said(report, "no_control") ==
        Texts{"No verdict without an A/A control: no command was run twice in 6 blocks or more."});
  Report sweep = report;  // whose points have no verdicts
  sweep.crossover.emplace_back().values = {{.value = 16, .run = kTwo}};
  CHECK(said(sweep, "no_control").empty());
  report.comparisons.pop_back();
  CHECK(said(report, "no_control").empty());  // nothing is compared
}

TEST_CASE("what was left out is said, and what was done about it", "[conclusions]") {
  Report report = report_of({});
  for (const char* code : {"busy", "note", "not_run", "partial"}) {
    CAPTURE(code);
    CHECK(said(report, code).empty());
  }
  report.machine["busy_before_share"] = 0.09;
  CHECK(said(report, "busy").empty());
  report.machine["busy_before_share"] = 0.1;
  CHECK(said(report, "busy") ==
        Texts{"Other programs kept 10 % of the processors busy before the first run: do not trust "
              "small differences, repeat on an idle machine."});
  CHECK(said(report, "note", {"these runs take long", ""}) == Texts{"These runs take long.", "."});
  report.not_run = {{"gloo", "shm is the default"}, {"torchrun", "it is not there"}};
  CHECK(said(report, "not_run") ==
        Texts{"Not run: gloo (shm is the default).", "Not run: torchrun (it is not there)."});
  report.partial = true;
  CHECK(said(report, "partial") == Texts{"Interrupted: this report is partial."});
}

TEST_CASE("sentences are grouped under their questions, in their order", "[conclusions]") {
  Report report = two_ranks(1.25);
  Run other = make_run(kDistributed, "spawn", 2, 1);
  other.model = "digits";
  report.runs.push_back(other);
  report.partial = true;
  using Group = std::pair<std::string, Texts>;
  CHECK(by_question(conclude(report, {"a note"})) ==
        std::vector<Group>{
            {"Which program?",
             {said(report, "fastest").at(0), "digits: most samples/s: 03_ddp_spawn on two ranks."}},
            {"How many ranks help?", said(report, "ranks")},
            {"How far to trust this",
             {said(report, "controls").at(0), "A note.", "Interrupted: this report is partial."}}});
  CHECK(by_question({}).empty());
}

}  // namespace
