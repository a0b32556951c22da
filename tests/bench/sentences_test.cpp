// Speeds, comparisons, verdicts and sentences from measured steps, in the record and on the screen.
#include "bench/report.hpp"

#include <limits>
#include <regex>

#include "bench/tables.hpp"
#include "tests/bench/made_up_reports.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace ddp::bench;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Adds repetitions around `step_ms`, with small differences between blocks and between runs.
void time_run(Run& run, double step_ms, int repetitions) {
  static int calls = 0;
  ++calls;
  for (int block = 0; block < repetitions; ++block) {
    add_repetition(run, block, step_ms * (1 + 0.002 * ((calls + 3 * block) % 7 - 3)));
  }
}

/// Runs of a default plan with peers.
std::vector<Timed> default_runs(const std::string& model) {
  return made_up_runs(R"(
      stage    01_single_gpu     main      none   none  1x1  4
      stage    01_single_gpu     main      none   none  1x2  5
      stage    02_data_parallel  main      none   none  2x1  5.5
      stage    03_ddp_spawn      main      spawn  shm   2x1  4.4
      stage    03_ddp_spawn      main      spawn  gloo  2x1  6
      peer     pytorch           tuned     none   none  1x2  9
      peer     pytorch           tuned     spawn  gloo  2x1  8
      peer     pytorch           compiled  spawn  gloo  2x1  6.6
      peer     jax               jit       none   none  1x2  4
      control  01_single_gpu     main      none   none  1x1  4
      control  03_ddp_spawn      main      spawn  shm   2x1  4.4)",
                      model);
}

/// Checks what every report promises: runs without a speed are compared with nothing, a sentence is
/// short, has runs of the report, and each of its numbers is a ratio of the report.
void check_promises(const Report& report) {
  for (const Comparison& one : report.comparisons) {
    CHECK((report.find(one.a)->has_speed() && report.find(one.b)->has_speed()));
  }
  for (const Sentence& sentence : report.sentences) {
    CAPTURE(sentence.text);
    CHECK(sentence.text.size() < 400);
    for (const std::string& name : sentence.runs) {
      CHECK(report.find(name)->has_speed());
    }
    const std::regex number("([0-9.]+)x");
    for (std::sregex_iterator at(sentence.text.begin(), sentence.text.end(), number), end;
         at != end; ++at) {
      const double value = std::stod((*at)[1]);
      CHECK(std::ranges::any_of(report.comparisons, [&](const Comparison& one) {
        return std::abs(*one.ratio - value) < 0.006 || std::abs(1 / *one.ratio - value) < 0.006;
      }));
    }
  }
}

Report make_report(const std::vector<Timed>& timed, int repetitions = 9) {
  Report report;
  for (const auto& [run, step_ms] : timed) {
    report.runs.push_back(run);
    time_run(report.runs.back(), step_ms, repetitions);
  }
  conclude(report);
  check_promises(report);
  return report;
}

const Comparison& comparison(const Report& report, const std::string& kind, const std::string& a,
                             const std::string& b) {
  CAPTURE(kind, a, b);
  const auto found = std::ranges::find_if(report.comparisons, [&](const Comparison& one) {
    return one.kind == kind && contains(one.a, a) && contains(one.b, b);
  });
  REQUIRE(found != report.comparisons.end());
  return *found;
}

/// Checks texts, by the codes of their sentences.
void check_said(const Report& report,
                const std::vector<std::pair<std::string, std::string>>& expected) {
  for (const auto& [code, text] : expected) {
    CAPTURE(text);
    CHECK(std::ranges::count(report.sentences, code, &Sentence::code) == 1);
    CHECK(contains(std::ranges::find(report.sentences, code, &Sentence::code)->text, text));
  }
}

/// Lines of the screen.
std::vector<std::string> screen_of(const Report& report) {
  std::stringstream out;
  print(out, report);
  std::vector<std::string> lines;
  for (std::string line; std::getline(out, line);) {
    CHECK(line.size() <= kScreenWidth);
    lines.push_back(line);
  }
  return lines;
}

int count_lines(const std::vector<std::string>& lines, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<int>(std::ranges::count_if(
      lines, [&](const std::string& line) { return std::regex_search(line, regex); }));
}

TEST_CASE("speeds follow from launches of the same block", "[pair]") {
  Run alone = default_runs("M")[0].run;
  Run ranks = default_runs("M")[3].run;
  for (int block = 0; block < 6; ++block) {
    const double slower = 1 + block;  // the machine is slower, for both
    add_repetition(alone, block, 2 * slower);
    add_repetition(ranks, 5 - block, 2.5 * (6 - block));
    ranks.repetitions.back().no_comm_median_ms = 2.5 * (6 - block) - 0.5;
    ranks.repetitions.back().startup_ms = 600 + block;
  }
  add_repetition(ranks, 7, 1e6);  // without a pair in its block
  Report report;
  report.runs = {alone, ranks};
  pair(report);
  const Run& result = report.runs[1];
  CHECK(report.runs[0].speedup == 1.0);
  CHECK(report.runs[0].samples_per_second.value() == Approx(64e3 / *report.runs[0].step_ms.median));
  CHECK(result.step_ms.n == 35);
  CHECK(result.speedup.value() == Approx(1.6));
  CHECK(result.speedup_ci95.value().low == Approx(1.6));
  CHECK(result.efficiency.value() == Approx(0.8));
  CHECK(result.exposed_comm_ms.value() == Approx(0.5));
  CHECK(result.startup_ms == 602.5);
  CHECK(comparison(report, "baseline", "03", "01").pairs == 6);
}

TEST_CASE("what fails or trains another way has no speed and is compared with nothing", "[pair]") {
  std::vector<Timed> timed = default_runs("M");
  const bool has_error = GENERATE(true, false);
  for (const std::size_t which : {0u, 3u, 5u, 9u, 10u}) {
    CAPTURE(has_error, which);
    std::vector<Timed> runs = timed;
    if (has_error) {
      runs[which].run.error = "exit code 1";
    } else {
      runs[which].run.parity.ok = false;
    }
    const Report report = make_report(runs);
    const Run& failed = report.runs[which];
    CHECK_FALSE(failed.has_speed());
    CHECK_FALSE((failed.step_ms.median || failed.samples_per_second || failed.speedup));
    CHECK_FALSE(report.comparisons.empty());
    CHECK(report.runs[1].speedup.has_value() == (which != 0));  // the baseline is missing
  }
}

TEST_CASE("the sentences of a quiet report say all that it shows", "[sentences]") {
  const Report report = make_report(default_runs("M"));
  const std::vector<std::string> codes = {"fastest", "ranks", "threads", "peers", "controls"};
  CHECK(std::ranges::equal(report.sentences, codes, {}, &Sentence::code));
  check_said(report, {{"fastest", "on M 03_ddp_spawn on 2 ranks over shm."}});
  CHECK(*comparison(report, "best", "shm", "gloo").ratio == Approx(1.364).epsilon(0.01));
}

TEST_CASE("a step of its own does not say whether ranks help", "[pair]") {
  std::vector<Timed> runs = default_runs("M");
  std::ranges::move(made_up_runs("stage 03_ddp_spawn fused spawn shm 2x1 1"),
                    std::back_inserter(runs));
  const Report report = make_report(runs);
  check_said(report, {{"fastest", "on M 03_ddp_spawn_fused on 2 ranks"},
                      {"ranks", "on M 2 ranks over shm help (1.8"},
                      {"threads", "on M 2 ranks over shm are 1.1"}});
  for (const Run& run : report.runs) {  // nor how much of the cores they use
    CAPTURE(run.name);
    const bool is_stages = run.kind == "stage" && run.variant == "main";
    CHECK(run.speedup.has_value() == (run.kind != "control"));
    CHECK(run.efficiency.has_value() == is_stages);
    CHECK(run.efficiency.value_or(0) < 1.01);
  }
  CHECK(*report.runs.back().speedup > 7);
  CHECK(count_lines(screen_of(report), "^  03_ddp_spawn_fused .*8\\.0.* +- +ok$") == 1);
}

TEST_CASE("nothing is claimed without controls", "[sentences]") {
  std::vector<Timed> runs = default_runs("M");
  int repetitions = 9;
  SECTION("without any") {
    std::erase_if(runs, [](const Timed& timed) { return timed.run.kind == "control"; });
  }
  SECTION("without that of ranks") {
    runs.pop_back();
  }
  SECTION("with too few repetitions") {
    repetitions = GENERATE(2, 5);
  }
  const Report report = make_report(runs, repetitions);
  CHECK(report.comparisons.size() > 8);
  CHECK(std::ranges::none_of(report.comparisons, &Comparison::significant));
  check_said(report,
             {{"fastest", "(not significantly faster than 01_single_gpu with 2 threads or 3 more)"},
              {"ranks", "whether 2 ranks over shm help cannot be told (1.8"},
              {"threads", "2 ranks over shm beat one process with 2 threads cannot be told (1.1"},
              {"peers", "x* as fast as pytorch compiled over gloo (both over gloo: 1."}});
  CHECK(*comparison(report, "peer", "gloo", "pytorch_compiled").ratio == Approx(1.1).epsilon(0.02));
  CHECK(std::ranges::count(report.sentences[3].text, '*') == 5);  // each ratio, and what it means
}

TEST_CASE("a ratio that equal commands may explain is said to be perhaps chance", "[sentences]") {
  std::vector<Timed> runs = default_runs("M");
  runs.back().step_ms *= GENERATE(3.0, 0.3);
  const Report report = make_report(runs);
  CHECK(std::ranges::none_of(report.comparisons, &Comparison::significant));
  const Comparison& ranks = comparison(report, "baseline", "shm", "01");
  CHECK(ranks.may_be_chance());
  CHECK(comparison(report, "peer", "shm", "jax").may_be_chance());  // 0.91
  check_said(report,
             {{"ranks", fmt::format("on M 2 ranks over shm {:.2f}x ({:.2f}-{:.2f}), but equal "
                                    "commands differed by {:.0f} %: may be chance.",
                                    *ranks.ratio, ranks.ci95->low, ranks.ci95->high,
                                    100 * (*ranks.equal_commands - 1))},
              {"threads", "2 ranks over shm against one process with 2 threads 1.1"}});
}

TEST_CASE("a single launch is compared with nothing, and marked", "[pair]") {
  const Report quick = make_report(default_runs("M"), 1);
  CHECK((quick.comparisons.empty() && quick.sentences.empty()));
  const std::vector<std::string> lines = screen_of(quick);
  CHECK(count_lines(lines, " 1 launch +- +ok$") == 9);
  CHECK(count_lines(lines, "^Programs with 1 launch are compared with nothing") == 1);
}

TEST_CASE("a speed-up that is not the quotient of the columns is marked", "[screen]") {
  Report report = make_report(default_runs("M"));
  CHECK(*report.runs[3].quotient == Approx(4 * 2 / 4.4).epsilon(0.01));
  CHECK(count_lines(screen_of(report), "~") == 0);
  for (const double factor : {1.2, 0.8}) {
    report.runs[3].quotient = *report.runs[3].speedup * factor;
    CHECK(count_lines(screen_of(report), "^  03_ddp_spawn +spawn +shm.* 1\\.8.~ \\(") == 1);
    CHECK(count_lines(screen_of(report), "^~ from pairs of neighbouring launches") == 1);
  }
}

TEST_CASE("speed-ups of other reports stand beside those of the same runs", "[screen]") {
  Report report = make_report(default_runs("M"));
  const std::string run = report.runs[3].name;
  set_beside({{{"cpu/" + run, {"a.json", "", 1.25}}, {"other", {"a.json", "", 9}}}}, report);
  CHECK(count_lines(screen_of(report), "^  03_ddp_spawn +spawn +shm .* +1.25 +91% +ok$") == 1);
  set_beside({{{"cpu/" + run, {"b.json", "", 1.5}}}}, report);
  CHECK(count_lines(screen_of(report), "^  program .* elsewhere eff. parity$") == 1);
  CHECK(count_lines(screen_of(report), "^  03_ddp_spawn +spawn +shm .* 1.25-1.50 of 2 +91% +ok$") ==
        1);
  CHECK(count_lines(screen_of(report), "^  02_data_parallel .* - +7.% +ok$") == 1);
}

TEST_CASE("a program of the user's is compared with its own single rank", "[pair]") {
  std::vector<Timed> runs = made_up_runs(R"(
      program  train.py  main  spawn     none  1x1  4
      program  train.py  main  spawn     none  2x1  5
      program  train.py  main  torchrun  none  1x1  4.4
      control  train.py  main  spawn     none  1x1  4
      control  train.py  main  spawn     none  2x1  5)",
                                         "P1");
  for (Timed& timed : runs) {
    timed.run.command = "python train.py";
    timed.run.parity = {};
  }
  runs[1].run.parity.unchecked = "train.py logs no losses";
  const auto report_with = [&](auto change) {
    std::vector<Timed> changed = runs;
    std::ranges::for_each(changed, change, &Timed::run);
    return make_report(changed);
  };
  Report report = make_report(runs);
  CHECK(*report.runs[1].speedup == Approx(1.6).epsilon(0.01));
  check_said(report, {{"fastest", "on P1 train.py on 2 ranks."},
                      {"ranks", "on P1 2 ranks help (1.6"},
                      {"unchecked", "on P1 train.py logs no losses."},
                      {"controls", "on P1 "}});
  CHECK(count_lines(screen_of(report), "^P1: 64 samples for each rank: python train.py$") == 1);
  CHECK(count_lines(screen_of(report), "^  train.py +torchrun +- +1 .* 0.91 .* 91% +-$") == 1);
  report = report_with([](Run& run) { run.global_batch = 64; });
  CHECK(*report.runs[1].speedup == Approx(0.8).epsilon(0.01));
  CHECK(count_lines(screen_of(report), "^P1: 64 samples over all ranks: ") == 1);
  report = report_with([](Run& run) { run.global_batch = {}; });
  CHECK(*report.runs[1].speedup == Approx(1.6).epsilon(0.01));
  CHECK(report.runs[1].samples_per_second == std::nullopt);
  CHECK(count_lines(screen_of(report), "^P1: weak scaling assumed, for it logs no samples: ") == 1);
  report = report_with([](Run& run) { run.global_batch = {}, run.scaling = "strong"; });
  CHECK(*report.runs[1].speedup == Approx(0.8).epsilon(0.01));
  report = report_with([](Run& run) { run.global_batch = {}, run.timed = "run"; });
  CHECK(*report.runs[1].speedup == Approx(0.8).epsilon(0.01));
  CHECK(report.runs[1].step_ms.n == 9);
  CHECK(count_lines(screen_of(report),
                    "^P1: whole runs of the same work, for it logs no steps: ") == 1);
  report = report_with([](Run& run) { run.threads = 3; });
  CHECK(*report.runs[1].efficiency == Approx(0.8).epsilon(0.01));  // 1.6 * 3 / 6
  CHECK(std::ranges::count(report.comparisons, "threads", &Comparison::kind) == 0);
  report = report_with(
      [](Run& run) { run.global_batch = run.world_size == 1 ? run.global_batch : std::nullopt; });
  CHECK_FALSE(report.runs[1].speedup);
  report = report_with([](Run& run) { run.timed = run.world_size == 1 ? "run" : "step"; });
  CHECK_FALSE(report.runs[1].speedup);
  check_said(report, {{"fastest", "on P1 train.py on 1 rank."}});
  set_beside({{{"cpu/" + report.runs[1].name, {"a.json", "", 9}}}}, report);
  CHECK(report.runs[1].elsewhere.empty());  // another's program of the same name
}

TEST_CASE("a difference counts that is larger than those of equal commands", "[judge]") {
  std::vector<Timed> runs = default_runs("M");
  runs.back().step_ms *= 1.2;
  std::ranges::move(made_up_runs("control 03_ddp_spawn main spawn gloo 2x1 6"),
                    std::back_inserter(runs));  // of its kind the largest counts
  std::ranges::copy_if(default_runs("L"), std::back_inserter(runs),
                       [](const Timed& timed) { return timed.run.kind != "control"; });
  const Report report = make_report(runs);
  CHECK(comparison(report, "baseline", "shm", "01").significant);  // 1.82
  CHECK(comparison(report, "peer", "shm", "pytorch_compiled").significant);  // 1.5
  CHECK_FALSE(comparison(report, "threads", "shm", "01").significant);  // 1.14
  CHECK_FALSE(comparison(report, "control", "shm", "shm").significant);
  runs[9].step_ms *= 3;  // the control of one core
  CHECK_FALSE(comparison(make_report(runs), "baseline", "shm", "01").significant);
  check_said(report, {{"ranks", "on L whether 2 ranks over shm help cannot be told"}});
  const std::regex noise(".*: on M [0-2]\\.. % with one core, 2[0-3] % with several; smaller .*");
  INFO(report.sentences.back().text);
  CHECK(std::regex_match(report.sentences.back().text, noise));
}

TEST_CASE("with several models there are five sentences, and every number is a ratio of the report",
          "[sentences]") {
  std::vector<Timed> runs = default_runs("T");
  for (Timed& timed : runs) {
    timed.step_ms *= timed.run.cores() > 1 ? 3 : 1;  // neither ranks nor threads help
  }
  runs[1].step_ms = 9.3;  // threads slow it down less
  for (Timed& timed : default_runs("L")) {
    timed.run.scaling = "strong";
    runs.push_back(timed);
  }
  const Report report = make_report(runs);
  REQUIRE(report.sentences.size() == 5);
  check_said(report, {{"fastest", "on T 01_single_gpu;\non L strong 03_ddp_spawn"},
                      {"ranks", "on T 2 ranks over shm do not help (0.6"},
                      {"ranks", "on L strong 2 ranks over shm help (1.8"},
                      {"threads", "on T one process with 2 threads is 1.4"},
                      {"threads", "x as fast as 2 ranks over shm;\non L"}});
  CHECK(std::ranges::none_of(report.sentences, [](const auto& one) { return one.runs.empty(); }));
}

TEST_CASE("our fastest run with a peer's cores and global batch stands beside it, or none",
          "[pair]") {
  const int other = GENERATE(0, 1, 2, 3);  // 1: another batch, 2: more cores, 3: a failed run
  std::vector<Timed> runs = default_runs("M");
  for (Timed& timed : runs) {
    if (timed.run.kind == "stage" && timed.run.cores() == 2) {
      timed.run.global_batch = *timed.run.global_batch * (other == 1 ? 2 : 1);
      timed.run.threads *= other == 2 ? 2 : 1;
    }
  }
  runs[3].run.parity.ok = other != 3;  // then our fastest is one process, as two of the peers
  const Report report = make_report(runs);
  // Two transports for each: PyTorch in one process, the faster of PyTorch's over gloo, JAX.
  CHECK(std::ranges::count(report.comparisons, "peer", &Comparison::kind) ==
        std::vector{6, 0, 0, 4}[static_cast<std::size_t>(other)]);
}

TEST_CASE("ranks stand beside as many threads, and each world size beside one process", "[pair]") {
  Report report = make_report(made_up_runs(R"(
      stage  01_single_gpu     main  none   none  1x1  4
      stage  01_single_gpu     main  none   none  1x2  12
      stage  03_ddp_spawn      main  spawn  shm   1x1  4.1
      stage  03_ddp_spawn      main  spawn  shm   2x1  10
      stage  03_ddp_spawn      main  spawn  shm   4x1  18
      stage  02_data_parallel  main  none   none  2x1  9)"));
  check_said(report, {{"ranks",
                       "process: on M whether 2 ranks over shm help cannot be told (0.80x), "
                       "whether 4 ranks"}});
  CHECK(contains(comparison(report, "threads", "ranks:", "threads:2").a, "shm/threads:1/ranks:2"));
  CHECK(std::ranges::count(report.comparisons, "threads", &Comparison::kind) == 1);
  for (Run& run : report.runs) {
    run.pieces_ms.backward = 1;
  }
  CHECK(count_lines(screen_of(report), "^  M: 03_ddp_spawn shm +4 ") == 1);
  report.runs[2].error = "exit code 1";
  conclude(report);
  check_said(report, {{"fastest", " or 3 more)"}});
}

TEST_CASE("contenders have the repetitions that an interval needs, or are all", "[pair]") {
  for (const int most : {5, 6, 7}) {
    Report report;
    report.runs = {default_runs("M")[3].run, default_runs("M")[2].run};
    time_run(report.runs[0], 4, most);
    time_run(report.runs[1], 3, 5);
    conclude(report);
    CAPTURE(most);
    const Workload runs = workloads(report).front();
    CHECK(contenders(runs).size() == (most < 6 ? 2 : 1));
    CHECK(fastest_stage(runs)->stage == (most < 6 ? "02_data_parallel" : "03_ddp_spawn"));
  }
}

TEST_CASE("a report where nothing was measured says so", "[sentences]") {
  Report empty;
  conclude(empty);
  CHECK(empty.sentences.empty());
  std::vector<Timed> runs = default_runs("M");
  const Report report = make_report(runs, 0);
  check_said(report, {{"fastest", "on M nothing could be measured"}});
  CHECK(report.comparisons.empty());
}

TEST_CASE("the record has what is known, and null for the rest", "[record]") {
  Report report = make_report(default_runs("M"));
  report.not_run = {{"mpirun", "it is not installed"}};
  report.runs[0].speedup = kNan;
  report.runs[0].limit_ms = std::numeric_limits<double>::infinity();
  report.runs[1].gpu = {.utilisation_percent = 50, .memory_mib = 100};
  const auto document = nlohmann::ordered_json::parse(nlohmann::ordered_json(report).dump());
  const auto& runs = document["runs"];
  for (const Column& column : columns()) {
    for (std::string key : column.keys) {
      CAPTURE(key);
      std::ranges::replace(key, '.', '/');
      CHECK(runs[3].contains(nlohmann::ordered_json::json_pointer("/" + key)));
    }
  }
  CHECK(document["schema_version"] == 3);
  CHECK(document["not_run"][0]["reason"] == "it is not installed");
  CHECK(runs[0]["speedup"].is_null());
  CHECK(runs[0]["limit_ms"].is_null());
  CHECK(runs[1]["gpu"]["memory_mib"] == 100);
  CHECK(runs[3]["speedup"] == *report.runs[3].speedup);
  CHECK(runs[3]["speedup_ci95"] ==
        std::vector{report.runs[3].speedup_ci95->low, report.runs[3].speedup_ci95->high});
  CHECK(runs[3]["repetitions"][0]["samples_ms"].size() == 5);
}

TEST_CASE("the screen of a default report has at most 45 lines, and a row for each run",
          "[screen]") {
  std::vector<Timed> timed = default_runs("T");
  std::ranges::copy(default_runs("M"), std::back_inserter(timed));
  timed[2].run.error = "rank 1: exit code 75: " + std::string(200, 'y');
  timed[4].run.error = "parity: moved 0.2, stage 01 moved 0.134512";
  Report report = make_report(timed);
  for (Run& run : report.runs) {
    run.pieces_ms = {.data = 0.25, .forward = 1, .backward = 2, .update = 0.5, .all_reduce = 1};
    run.limit_ms = 0.00712;
    if (run.is_distributed()) {
      run.exposed_comm_ms = 0.25;
    }
  }
  report.not_run = {{"srun", "not in a Slurm allocation"}};
  const std::vector<std::string> lines = screen_of(report);
  CHECK(lines.size() <= 45);
  const std::pair<int, const char*> expected[] = {
      {2, "^[TM]: "},
      {2, "^  program .* ranks +step ms +samples/s +speed-up +eff. +parity$"},
      {1, "^  program .* update +reduce += sum +step +exposed +limit$"},
      {2, "^  01_single_gpu +- +- +1x2 +5\\.00 +25,6\\d\\d +1\\.60 \\(.* 80% +ok$"},
      {1, "^  02_data_parallel .*error: rank 1: exit code 75: y+\\.\\.\\.$"},
      {1, "^  03.*gloo +2  error: parity: moved 0.2, stage 01 moved 0.134512$"},
      {0, "control"},
      // Pieces, their sum, the step, exposed, limit.
      {1, "^  M: 03_ddp_spawn shm +2( +\\d\\.\\d+){5} +4.75 +4.40 +0.250 +0.0071$"},
      {1, "^Not run: srun"}};
  for (const auto& [count, pattern] : expected) {
    CAPTURE(pattern);
    CHECK(count_lines(lines, pattern) == count);
  }
  report.partial = true;
  CHECK(count_lines(screen_of(report), "partial") == 1);
}

}  // namespace
