// bench compare: verdicts, what is listed besides, bad input, and how often its intervals hold.
#include "bench/report/compare.hpp"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "bench/report/report_file.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/report_documents.hpp"
#include "tests/support/run_program.hpp"

namespace {

namespace fs = std::filesystem;
using namespace ddp::bench;
using ddp::test::Json;
using ddp::test::make_control;
using ddp::test::make_report;
using ddp::test::make_run;
using ddp::test::NormalNoise;
using ddp::test::with_error;

const std::vector<double> quiet_ms = {1.000, 1.004, 0.997, 1.002, 0.999};

std::vector<double> times(double factor, std::vector<double> values) {
  for (double& value : values) {
    value *= factor;
  }
  return values;
}

ReportComparison compare(const Json& a, const Json& b, double threshold = kDefaultThreshold) {
  return compare_reports(parse_report("A", a), parse_report("B", b), threshold);
}

const RunChange& change_of(const ReportComparison& comparison, const std::string& name) {
  const auto found = std::find_if(comparison.runs.begin(), comparison.runs.end(),
                                  [&](const RunChange& change) { return change.name == name; });
  REQUIRE(found != comparison.runs.end());
  return *found;
}

/// The verdict on one run whose repetitions took this long in A and in B.
RunChange judge(const std::vector<double>& a, const std::vector<double>& b,
                double threshold = kDefaultThreshold) {
  const Json report_a = make_report({make_run("03_ddp_spawn", 2, a)});
  const Json report_b = make_report({make_run("03_ddp_spawn", 2, b)});
  return compare(report_a, report_b, threshold).runs.at(0);
}

/// A folder with reports, and the program run on them.
class Files {
 public:
  Files() {
    std::string pattern = (fs::temp_directory_path() / "ddp-compare-test-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
  }
  ~Files() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  fs::path root() const { return root_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ / name) << text;
  }
  void write(const std::string& name, const Json& document) const { write(name, document.dump()); }
  auto run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), std::string(DDP_BIN_DIR) + "/bench");
    ddp::test::RunOptions options;
    options.cwd = root_.string();
    return ddp::test::run_program(arguments, options);
  }

 private:
  fs::path root_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a verdict needs a change beyond the threshold that is more than noise", "[compare]") {
  CHECK(judge(quiet_ms, quiet_ms).verdict == Verdict::kSame);
  CHECK(judge(quiet_ms, times(1.10, quiet_ms)).verdict == Verdict::kSlower);
  CHECK(judge(quiet_ms, times(0.90, quiet_ms)).verdict == Verdict::kFaster);
  CHECK(judge(quiet_ms, times(1.02, quiet_ms)).verdict == Verdict::kSame);
  CHECK(judge(quiet_ms, times(1.02, quiet_ms), 0.01).verdict == Verdict::kSlower);
  CHECK(judge(quiet_ms, times(1.10, quiet_ms), 0.20).verdict == Verdict::kSame);

  const RunChange noisy = judge({0.6, 0.9, 1.0, 1.2, 1.7}, {0.7, 0.8, 1.1, 1.5, 1.9});
  CHECK(noisy.ratio == Approx(1.1));
  CHECK(noisy.verdict == Verdict::kNone);
  CHECK(noisy.reason == "too noisy");
  // Nothing was found, but a change of 10 % is not excluded: that is not "same" either.
  CHECK(judge({0.6, 0.9, 1.0, 1.2, 1.7}, {0.6, 0.9, 1.0, 1.2, 1.7}).verdict == Verdict::kNone);
}

TEST_CASE("the change is that of the medians of the repetitions' medians", "[compare]") {
  const RunChange change = judge({1, 1, 1, 1, 9}, {2, 2, 2, 0.1, 2});
  CHECK(change.a_ms == 1.0);
  CHECK(change.b_ms == 2.0);
  CHECK(change.ratio == 2.0);
  REQUIRE(change.ci95);
  CHECK(change.ci95->low <= 2.0);
  CHECK(change.ci95->high >= 2.0);
}

TEST_CASE("too few repetitions give a change but no verdict", "[compare]") {
  for (const std::ptrdiff_t n : {1, 2}) {
    const std::vector<double> few(quiet_ms.begin(), quiet_ms.begin() + n);
    for (const RunChange& change :
         {judge(few, times(2, quiet_ms)), judge(quiet_ms, times(2, few))}) {
      CHECK(change.ratio == Approx(2).epsilon(0.01));
      CHECK_FALSE(change.ci95);
      CHECK(change.verdict == Verdict::kNone);
      CHECK(change.reason == "fewer than 3 repetitions");
    }
  }
  CHECK(judge({1, 1, 1}, {2, 2, 2}).verdict == Verdict::kSlower);
}

TEST_CASE("reports that do not tell repetitions apart give a change but no verdict", "[compare]") {
  Json run = make_run("03_ddp_spawn", 2, quiet_ms);
  run.erase("repetition_medians_ms");
  const RunChange change = compare(make_report({run}), make_report({run})).runs.at(0);
  CHECK(change.ratio == 1.0);
  CHECK(change.verdict == Verdict::kNone);
  CHECK(contains(change.reason, "repetition_medians_ms"));
}

TEST_CASE("what is not a number is never the same", "[compare]") {
  const Json good = make_run("03_ddp_spawn", 2, quiet_ms);
  for (const Json& bad : {Json(nullptr), Json(std::numeric_limits<double>::quiet_NaN()),
                          Json(std::numeric_limits<double>::infinity())}) {
    CAPTURE(bad.dump());
    Json run = good;
    run["repetition_medians_ms"] = {bad, bad, bad, bad, bad};
    run["samples_ms"] = {bad, bad};
    for (const auto& [a, b] : {std::pair(good, run), std::pair(run, good), std::pair(run, run)}) {
      const ReportComparison comparison = compare(make_report({a}), make_report({b}));
      REQUIRE(comparison.runs.size() == 1);
      CHECK_FALSE(comparison.runs[0].ratio);
      CHECK(comparison.runs[0].verdict == Verdict::kNone);
      CHECK(contains(comparison.runs[0].reason, "not measured in"));
      CHECK(comparison.count(Verdict::kSame) == 0);
    }
    // Those that were run still count.
    run = good;
    run["repetition_medians_ms"] = {1.0, bad, 1.0, 1.0, bad};
    CHECK(compare(make_report({good}), make_report({run})).runs.at(0).verdict == Verdict::kSame);
    run["repetition_medians_ms"] = {1.0, bad, 1.0, bad, bad};
    CHECK(compare(make_report({good}), make_report({run})).runs.at(0).verdict == Verdict::kNone);
  }
}

TEST_CASE("other work under the same name is not compared", "[compare]") {
  Json run = make_run("03_ddp_spawn", 2, quiet_ms);
  const Json report = make_report({run});
  run["global_batch"] = 128;
  const RunChange change = compare(report, make_report({run})).runs.at(0);
  CHECK_FALSE(change.ratio);
  CHECK(change.verdict == Verdict::kNone);
  CHECK(contains(change.reason, "global batch"));
}

TEST_CASE("runs are sorted by importance", "[compare]") {
  std::vector<Json> a;
  std::vector<Json> b;
  const std::vector<double> factors = {1.01, 0.80, 1.00, 1.20, 1.40, 0.70};
  a.reserve(factors.size());
  b.reserve(factors.size());
  for (std::size_t i = 0; i < factors.size(); ++i) {
    a.push_back(make_run("program" + std::to_string(i), 1, quiet_ms));
    b.push_back(make_run("program" + std::to_string(i), 1, times(factors[i], quiet_ms)));
  }
  const ReportComparison comparison = compare(make_report(a), make_report(b));
  std::string order;
  for (const RunChange& change : comparison.runs) {
    order += change.name.at(std::string("T/weak/program").size());
  }
  CHECK(order == "435102");
  CHECK(comparison.regressions() == 2);
  CHECK(comparison.count(Verdict::kFaster) == 2);
  CHECK(comparison.count(Verdict::kSame) == 2);
}

TEST_CASE("intervals allow for the controls of runs of their kind", "[compare]") {
  const Json one = make_run("01_single_gpu", 1, quiet_ms);
  const Json two = make_run("03_ddp_spawn", 2, quiet_ms);
  const Json one_slower = make_run("01_single_gpu", 1, times(1.1, quiet_ms));
  const Json two_slower = make_run("03_ddp_spawn", 2, times(1.1, quiet_ms));
  const double noise = GENERATE(1.2, 1 / 1.2);

  const Json a = make_report({one, two}, {make_control(one, 1.001), make_control(two, 1.01)});
  const Json b = make_report({one_slower, two_slower}, {make_control(two, noise)});
  for (const ReportComparison& comparison : {compare(a, b), compare(b, a)}) {
    REQUIRE(comparison.worst_control[0]);
    REQUIRE(comparison.worst_control[1]);
    CHECK(comparison.worst_control[0]->ratio == 1.001);
    CHECK(comparison.worst_control[1]->ratio == noise);
    CHECK(change_of(comparison, "T/weak/01_single_gpu/ranks:1").verdict != Verdict::kNone);
    CHECK(change_of(comparison, "T/weak/03_ddp_spawn/ranks:2").verdict == Verdict::kNone);
  }
  // The control's deviation counts as a standard error.
  const RunChange without =
      change_of(compare(make_report({one, two}), make_report({one_slower, two_slower})),
                "T/weak/03_ddp_spawn/ranks:2");
  const RunChange with = change_of(compare(a, b), "T/weak/03_ddp_spawn/ranks:2");
  const auto half = [](const Interval& interval) {
    return std::log(interval.high / interval.low) / 2;
  };
  CHECK(half(*with.ci95) == Approx(std::hypot(half(*without.ci95), 1.959964 * std::log(1.2))));

  // With controls of the other kind only, those have to do.
  const Json c = make_report({one, two}, {make_control(two, 1.5)});
  CHECK(change_of(compare(c, c), "T/weak/01_single_gpu/ranks:1").verdict == Verdict::kNone);
}

TEST_CASE("controls and peers are no regressions", "[compare]") {
  Json control = make_run("01_single_gpu", 1, quiet_ms);
  control["name"] = "T/weak/01_single_gpu/ranks:1/control";
  control["kind"] = "control";
  Json peer = make_run("pytorch", 2, quiet_ms);
  peer["kind"] = "peer";
  Json slow_control = control;
  slow_control["repetition_medians_ms"] = times(2, quiet_ms);
  Json slow_peer = peer;
  slow_peer["repetition_medians_ms"] = times(2, quiet_ms);
  const ReportComparison comparison =
      compare(make_report({control, peer}), make_report({slow_control, slow_peer}));
  REQUIRE(comparison.runs.size() == 1);
  CHECK(comparison.runs[0].kind == "peer");
  CHECK(comparison.runs[0].verdict == Verdict::kSlower);
  CHECK(comparison.regressions() == 0);
  CHECK(comparison.drift.empty());
}

TEST_CASE("errors that come or go are listed, and a lost speed is a regression", "[compare]") {
  const Json run = make_run("03_ddp_spawn", 2, quiet_ms);
  const Json other = make_run("01_single_gpu", 1, quiet_ms);
  const Json good = make_report({other, run});
  const Json bad = make_report({other, with_error(run, "exit code 1")});

  const ReportComparison lost = compare(good, bad);
  REQUIRE(lost.errors.size() == 1);
  CHECK(lost.errors[0].b == "exit code 1");
  CHECK(lost.errors[0].lost_speed);
  CHECK(lost.regressions() == 1);
  CHECK(lost.runs.size() == 1);

  const ReportComparison found = compare(bad, good);
  REQUIRE(found.errors.size() == 1);
  CHECK(found.errors[0].a == "exit code 1");
  CHECK_FALSE(found.errors[0].lost_speed);
  CHECK(found.regressions() == 0);

  const ReportComparison both = compare(bad, bad);
  CHECK(both.errors.empty());
  CHECK(both.errors_in_both == 1);
  CHECK(both.regressions() == 0);
}

TEST_CASE("what only one report has, and what was set otherwise, is listed", "[compare]") {
  const Json one = make_run("01_single_gpu", 1, quiet_ms);
  Json a = make_report({one, make_run("02_data_parallel", 1, quiet_ms)});
  Json b = make_report({make_run("03_ddp_spawn", 2, quiet_ms), one});
  b["ddp_scaling"]["machine"]["host"] = "there";
  b["ddp_scaling"]["machine"]["load_average"] = {8, 8, 8};
  b["ddp_scaling"]["software"]["launchers"]["mpirun"] = {{"path", "/usr/bin/mpirun"}};
  b["ddp_scaling"]["settings"].erase("repetitions");
  b["ddp_scaling"]["runs"][1]["parity"]["moved"] = 1.5;
  const ReportComparison comparison = compare(a, b);
  CHECK(comparison.only_in_a == std::vector<std::string>{"T/weak/02_data_parallel/ranks:1"});
  CHECK(comparison.only_in_b == std::vector<std::string>{"T/weak/03_ddp_spawn/ranks:2"});
  std::vector<std::string> fields;
  fields.reserve(comparison.changes.size());
  for (const FieldChange& change : comparison.changes) {
    fields.push_back(change.field);
  }
  CHECK(fields == std::vector<std::string>{"machine.host", "settings.repetitions",
                                           "software.launchers.mpirun.path"});
  CHECK(comparison.changes[1].a == 5);
  CHECK(comparison.changes[1].b.is_null());
  CHECK(comparison.machine_differs == std::vector<std::string>{"host"});
  REQUIRE(comparison.parity.size() == 1);
  CHECK(comparison.parity[0].moved_b == 1.5);
  CHECK(comparison.parity[0].runs == std::vector<std::string>{"T/weak/01_single_gpu/ranks:1"});
  REQUIRE(comparison.drift.size() == 1);
  CHECK(comparison.drift[0].ratio == 1.0);

  CHECK(compare(a, a).changes.empty());
  CHECK(compare(a, a).parity.empty());
  CHECK_THROWS_AS(compare(a, make_report({make_run("03_ddp_spawn", 2, quiet_ms)})),
                  ddp::UsageError);
}

TEST_CASE("training that ends elsewhere or agrees no longer is a change of parity", "[compare]") {
  const auto with_parity = [](const Json& moved, bool ok) {
    Json run = make_run("03_ddp_spawn", 2, quiet_ms);
    run["parity"] = {{"moved", moved}, {"reference_moved", 1.408}, {"ok", ok}};
    return make_report({run});
  };
  CHECK(compare(with_parity(1.408, true), with_parity(1.40805, true)).parity.empty());
  CHECK(compare(with_parity(nullptr, false), with_parity(nullptr, false)).parity.empty());
  CHECK(compare(with_parity(1.408, true), with_parity(1.409, true)).parity.size() == 1);
  CHECK(compare(with_parity(1.408, true), with_parity(1.408, false)).parity.size() == 1);
  CHECK(compare(with_parity(1.408, true), with_parity(nullptr, true)).parity.size() == 1);
}

TEST_CASE("thresholds are shares of the step time", "[compare]") {
  CHECK(parse_threshold("5%") == Approx(0.05));
  CHECK(parse_threshold("5 %") == Approx(0.05));
  CHECK(parse_threshold("0.05") == 0.05);
  CHECK(parse_threshold("2.5%") == Approx(0.025));
  CHECK(parse_threshold("0") == 0);
  CHECK(parse_threshold("1e-3") == 0.001);
  for (const char* bad : {"", "%", "5", "5%%", "-5%", "100%", "1", "five", "0.05x", "5% ", "nan",
                          "inf", "nan%", "1e999"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_threshold(bad), ddp::UsageError);
  }
}

TEST_CASE("the program tells people and programs, and exits with 1 on a regression", "[compare]") {
  const Files files;
  const Json one = make_run("01_single_gpu", 1, quiet_ms);
  files.write("a.json", make_report({one, make_run("03_ddp_spawn", 2, quiet_ms)}));
  files.write("b.json", make_report({one, make_run("03_ddp_spawn", 2, times(1.1, quiet_ms))}));

  const auto same = files.run({"compare", "a.json", "a.json"});
  CHECK(same.exit_code == 0);
  CHECK(same.err.empty());
  CHECK(contains(same.out, "0 slower beyond 5 %, 2 unchanged, 0 faster, 0 without a verdict"));

  const auto slower = files.run({"compare", "a.json", "b.json"});
  CHECK(slower.exit_code == 1);
  CHECK(contains(slower.out, "+10.0 %"));
  CHECK(contains(slower.out, "1 slower beyond 5 %, 1 unchanged"));
  CHECK(files.run({"compare", "b.json", "a.json"}).exit_code == 0);
  CHECK(files.run({"compare", "a.json", "b.json", "--threshold", "20%"}).exit_code == 0);
  CHECK(files.run({"compare", "--threshold=0.2", "a.json", "b.json"}).exit_code == 0);

  const auto document = files.run({"compare", "--json", "a.json", "b.json"});
  CHECK(document.exit_code == 1);
  const Json json = Json::parse(document.out);  // the whole of standard output
  CHECK(json.at("schema_version") == 1);
  CHECK(json.at("regressions") == 1);
  CHECK(json.at("threshold") == 0.05);
  CHECK(json.at("a").at("file") == "a.json");
  const Json& run = json.at("runs").at(0);
  CHECK(run.at("name") == "T/weak/03_ddp_spawn/ranks:2");
  CHECK(run.at("verdict") == "slower");
  CHECK(run.at("ratio").get<double>() == Approx(1.1));
  CHECK(run.at("ci95").at(0).get<double>() > 1.05);
  CHECK(run.at("ci95").at(1).get<double>() < 1.15);

  CHECK(files.run({"compare", "a.json", "b.json", "--json", "c.json"}).exit_code == 1);
  std::ifstream written(files.root() / "c.json");
  CHECK(Json::parse(written) == json);

  CHECK(files.run({"compare", "--help"}).exit_code == 0);
}

TEST_CASE("what is no report is refused in one line", "[compare]") {
  const Files files;
  const Json good = make_report({make_run("01_single_gpu", 1, quiet_ms)});
  files.write("good.json", good);
  struct Case {
    std::string text;
    const char* error;
  };
  std::vector<Case> cases = {
      {"", "b.json:1: not JSON"},
      {"{\n\"ddp_scaling\": {\n", "b.json:3: not JSON"},
      {"{\"ddp_scaling\": NaN}", "b.json:1: not JSON"},
      {"{\"x\": 1e999}", "too large"},
      {"[]", "\"ddp_scaling\""},
      {"{\"context\": {}}", "\"ddp_scaling\""},
      {std::string(100000, '['), "nested"},
  };
  const auto damaged = [&](const char* pointer, const Json& value, const char* error) {
    Json document = good;
    document[Json::json_pointer(pointer)] = value;
    cases.push_back({document.dump(), error});
  };
  damaged("/ddp_scaling", 7, "/ddp_scaling: expected an object, got 7");
  damaged("/ddp_scaling/schema_version", 2, "/ddp_scaling/schema_version: expected 1, got 2");
  damaged("/ddp_scaling/runs", "many", "/ddp_scaling/runs: expected a list, got \"many\"");
  damaged("/ddp_scaling/runs/0", nullptr, "/ddp_scaling/runs/0: expected an object, got null");
  damaged("/ddp_scaling/runs/0/name", 5, "/ddp_scaling/runs/0/name: expected text, got 5");
  damaged("/ddp_scaling/runs/0/repetition_medians_ms/2", -1, "expected a number above 0, or null");
  damaged("/ddp_scaling/runs/0/repetition_medians_ms/2", "fast", "got \"fast\"");
  damaged("/ddp_scaling/runs/0/parity/ok", nullptr, "expected true or false, got null");
  damaged("/ddp_scaling/runs/1", good.at("ddp_scaling").at("runs").at(0),
          "expected a name that no other run has, got \"T/weak/01_single_gpu/ranks:1\"");
  damaged("/ddp_scaling/comparisons/0", {{"kind", "control"}}, "no /ddp_scaling/comparisons/0/a");
  damaged("/ddp_scaling/comparisons/0",
          {{"kind", "control"}, {"a", "x"}, {"b", "y"}, {"ratio_median", 1}},
          "expected the name of a run, got \"y\"");
  for (const char* key : {"runs", "machine", "settings", "software", "partial", "not_run",
                          "comparisons", "schema_version"}) {
    Json document = good;
    document["ddp_scaling"].erase(key);
    cases.push_back({document.dump(), key});
  }
  for (const Case& bad : cases) {
    CAPTURE(bad.text.substr(0, 300), bad.error);
    files.write("b.json", bad.text);
    for (const bool first : {false, true}) {
      const auto result = first ? files.run({"compare", "b.json", "good.json"})
                                : files.run({"compare", "good.json", "b.json"});
      CHECK(result.exit_code == 2);
      CHECK(result.out.empty());
      CHECK(contains(result.err, bad.error));
      CHECK(contains(result.err, "b.json"));
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    }
  }
}

TEST_CASE("a wrong command line is refused in one line", "[compare]") {
  const Files files;
  files.write("a.json", make_report({make_run("01_single_gpu", 1, quiet_ms)}));
  files.write("other.json", make_report({make_run("03_ddp_spawn", 2, quiet_ms)}));
  struct Case {
    std::vector<std::string> arguments;
    const char* error;
  };
  const std::vector<Case> cases = {
      {{}, "A is required"},
      {{"a.json"}, "B is required"},
      {{"a.json", "a.json", "a.json"}, "a.json"},
      {{"a.json", "missing.json"}, "missing.json: cannot be read (No such file or directory)"},
      {{"a.json", "."}, ".: is a folder"},
      {{"a.json", "a.json", "--foo"}, "--foo"},
      {{"a.json", "a.json", "--threshold", "5"}, "such as 5% or 0.05, got \"5\""},
      {{"a.json", "a.json", "--threshold"}, "--threshold"},
      {{"a.json", "a.json", "--json", "nowhere/c.json"}, "nowhere/c.json"},
      {{"a.json", "other.json"}, "none of its 1 runs has the name of one in a.json"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.arguments);
    std::vector<std::string> arguments = bad.arguments;
    arguments.insert(arguments.begin(), "compare");
    const auto result = files.run(arguments);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, bad.error));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

TEST_CASE("intervals of the same program hold no change 93 times in 100 or more",
          "[compare][coverage]") {
  NormalNoise noise(2026);
  struct Case {
    int a;
    int b;
    double sd_a;
    double sd_b;
  };
  for (const Case& repetitions : std::vector<Case>{{3, 3, 0.03, 0.03},
                                                   {5, 5, 0.03, 0.03},
                                                   {10, 10, 0.03, 0.03},
                                                   {3, 3, 0.30, 0.30},
                                                   {5, 5, 0.02, 0.08},
                                                   {5, 10, 0.03, 0.03}}) {
    CAPTURE(repetitions.a, repetitions.b, repetitions.sd_a, repetitions.sd_b);
    constexpr int kTrials = 4000;
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const auto interval = welch_ratio_ci95(noise.step_times(1, repetitions.sd_a, repetitions.a),
                                             noise.step_times(1, repetitions.sd_b, repetitions.b));
      REQUIRE(interval);
      covered += interval->low <= 1 && 1 <= interval->high ? 1 : 0;
    }
    CHECK(covered >= 0.93 * kTrials);
    // An interval that holds everything would pass too.
    CHECK(covered <= 0.985 * kTrials);
  }
}

TEST_CASE("reports of one build from a machine that drifts agree, and a slower one is found",
          "[compare][coverage]") {
  NormalNoise noise(7);
  // From one report to the next each program's speed moves by 0.4 of what its repetitions scatter,
  // which no report can see by itself.
  const auto report = [&](double factor) {
    std::vector<Json> runs;
    std::vector<Json> comparisons;
    for (int program = 0; program < 6; ++program) {
      const double sd = program % 2 == 0 ? 0.01 : 0.04;
      const int ranks = 1 + program % 2;
      const double typical_ms = factor * std::exp(0.4 * sd * noise());
      runs.push_back(make_run("program" + std::to_string(program), ranks,
                              noise.step_times(typical_ms, sd, 5)));
      if (program < 2) {
        comparisons.push_back(make_control(runs.back(), std::exp(sd / std::sqrt(2.5) * noise())));
      }
    }
    return make_report(runs, comparisons);
  };
  constexpr int kPairs = 300;
  int intervals = 0;
  int agree = 0;
  int agree_without_controls = 0;
  int found = 0;
  const auto count_agreeing = [](const ReportComparison& comparison) {
    return static_cast<int>(
        std::count_if(comparison.runs.begin(), comparison.runs.end(), [](const RunChange& change) {
          return change.ci95 && change.ci95->low <= 1 && 1 <= change.ci95->high;
        }));
  };
  for (int pair = 0; pair < kPairs; ++pair) {
    Json a = report(1);
    Json b = report(1);
    const Json slow = report(1.1);
    intervals += 6;
    agree += count_agreeing(compare(a, b));
    found += change_of(compare(a, slow), "T/weak/program0/ranks:1").verdict == Verdict::kSlower;
    a["ddp_scaling"]["comparisons"] = Json::array();
    b["ddp_scaling"]["comparisons"] = Json::array();
    agree_without_controls += count_agreeing(compare(a, b));
  }
  CHECK(agree >= 0.95 * intervals);
  CHECK(agree_without_controls < 0.95 * intervals);
  CHECK(found >= 0.95 * kPairs);
}

}  // namespace
