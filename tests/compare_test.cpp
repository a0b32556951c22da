// bench compare: verdicts, what is listed besides, bad input, and how often its intervals hold.
#include "bench/report/compare.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "bench/report/report_file.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/report_documents.hpp"

namespace {

using namespace ddp::bench;
using ddp::test::contains;
using ddp::test::Json;
using ddp::test::make_control;
using ddp::test::make_report;
using ddp::test::make_run;
using ddp::test::NormalNoise;
using ddp::test::ReportFolder;
using ddp::test::set_medians;
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
  const auto found = std::ranges::find(comparison.runs, name, &RunChange::name);
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

TEST_CASE("a verdict needs a change beyond the threshold that is more than noise", "[compare]") {
  CHECK(judge(quiet_ms, quiet_ms).verdict == "same");
  CHECK(judge(quiet_ms, times(1.10, quiet_ms)).verdict == "slower");
  CHECK(judge(quiet_ms, times(0.90, quiet_ms)).verdict == "faster");
  CHECK(judge(quiet_ms, times(1.02, quiet_ms)).verdict == "same");
  CHECK(judge(quiet_ms, times(1.02, quiet_ms), 0.01).verdict == "slower");
  CHECK(judge(quiet_ms, times(1.10, quiet_ms), 0.20).verdict == "same");

  const RunChange noisy = judge({0.6, 0.9, 1.0, 1.2, 1.7}, {0.7, 0.8, 1.1, 1.5, 1.9});
  CHECK(noisy.ratio == Approx(1.1));
  CHECK(noisy.verdict == std::nullopt);
  CHECK(noisy.reason == "too noisy");
  // Nothing was found, but a change of 10 % is not excluded: that is not "same" either.
  CHECK(judge({0.6, 0.9, 1.0, 1.2, 1.7}, {0.6, 0.9, 1.0, 1.2, 1.7}).verdict == std::nullopt);
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
  const std::size_t n = GENERATE(1U, 2U);
  std::vector<double> few = quiet_ms;
  few.resize(n);
  for (const RunChange& change : {judge(few, times(2, quiet_ms)), judge(quiet_ms, times(2, few))}) {
    CHECK(change.ratio == Approx(2).epsilon(0.01));
    CHECK_FALSE(change.ci95);
    CHECK(change.verdict == std::nullopt);
    CHECK(change.reason == "fewer than 3 repetitions");
  }
  CHECK(judge({1, 1, 1}, {2, 2, 2}).verdict == "slower");
}

TEST_CASE("reports that do not tell repetitions apart give a change but no verdict", "[compare]") {
  Json run = make_run("03_ddp_spawn", 2, quiet_ms);
  run.erase("repetitions");
  const RunChange change = compare(make_report({run}), make_report({run})).runs.at(0);
  CHECK(change.ratio == 1.0);
  CHECK(change.verdict == std::nullopt);
  CHECK(contains(change.reason.value_or(""), "no repetitions in A"));
}

TEST_CASE("what is not a number is never the same", "[compare]") {
  const Json good = make_run("03_ddp_spawn", 2, quiet_ms);
  for (const Json& bad : {Json(nullptr), Json(std::numeric_limits<double>::quiet_NaN()),
                          Json(std::numeric_limits<double>::infinity())}) {
    CAPTURE(bad.dump());
    Json run = good;
    set_medians(run, {bad, bad, bad, bad, bad});
    run["step_ms"]["median"] = bad;
    for (const auto& [a, b] : {std::pair(good, run), std::pair(run, good), std::pair(run, run)}) {
      const ReportComparison comparison = compare(make_report({a}), make_report({b}));
      REQUIRE(comparison.runs.size() == 1);
      CHECK_FALSE(comparison.runs[0].ratio);
      CHECK(comparison.runs[0].verdict == std::nullopt);
      CHECK(contains(comparison.runs[0].reason.value_or(""), "not measured in"));
      CHECK(comparison.count("same") == 0);
    }
    // Those that were run still count.
    set_medians(run, {1.0, bad, 1.0, 1.0, bad});
    CHECK(compare(make_report({good}), make_report({run})).runs.at(0).verdict == "same");
    set_medians(run, {1.0, bad, 1.0, bad, bad});
    CHECK(compare(make_report({good}), make_report({run})).runs.at(0).verdict == std::nullopt);
  }
}

TEST_CASE("other work under the same name is not compared", "[compare]") {
  Json run = make_run("03_ddp_spawn", 2, quiet_ms);
  const Json report = make_report({run});
  run["global_batch"] = 128;
  const RunChange change = compare(report, make_report({run})).runs.at(0);
  CHECK_FALSE(change.ratio);
  CHECK(change.verdict == std::nullopt);
  CHECK(contains(change.reason.value_or(""), "global batch"));
}

TEST_CASE("runs are sorted by importance", "[compare]") {
  std::vector<Json> a;
  std::vector<Json> b;
  for (const double factor : {1.01, 0.80, 1.00, 1.20, 1.40, 0.70}) {
    const std::string program = std::to_string(a.size());
    a.push_back(make_run(program, 1, quiet_ms));
    b.push_back(make_run(program, 1, times(factor, quiet_ms)));
  }
  const ReportComparison comparison = compare(make_report(a), make_report(b));
  std::string order;
  for (const RunChange& change : comparison.runs) {
    order += change.name.at(std::string("T/weak/").size());
  }
  CHECK(order == "435102");
  CHECK(comparison.regressions == 2);
  CHECK(comparison.count("faster") == 2);
  CHECK(comparison.count("same") == 2);
}

TEST_CASE("intervals allow for the controls of runs of their kind", "[compare]") {
  const std::string one_name = "T/weak/01_single_gpu/ranks:1";
  const std::string two_name = "T/weak/03_ddp_spawn/ranks:2";
  const Json one = make_run("01_single_gpu", 1, quiet_ms);
  const Json two = make_run("03_ddp_spawn", 2, quiet_ms);
  const std::vector<Json> slower = {make_run("01_single_gpu", 1, times(1.1, quiet_ms)),
                                    make_run("03_ddp_spawn", 2, times(1.1, quiet_ms))};
  const double noise = GENERATE(1.2, 1 / 1.2);

  const Json a = make_report({one, two}, {make_control(one, 1.001), make_control(two, 1.01)});
  const Json b = make_report(slower, {make_control(two, noise)});
  for (const ReportComparison& comparison : {compare(a, b), compare(b, a)}) {
    REQUIRE(comparison.worst_control.one_rank);
    REQUIRE(comparison.worst_control.several_ranks);
    CHECK(comparison.worst_control.one_rank->ratio == 1.001);
    CHECK(comparison.worst_control.several_ranks->ratio == noise);
    CHECK(change_of(comparison, one_name).verdict != std::nullopt);
    CHECK(change_of(comparison, two_name).verdict == std::nullopt);
  }
  // The control's deviation counts as a standard error.
  const auto half = [&](const ReportComparison& comparison) {
    const Interval ci95 = change_of(comparison, two_name).ci95.value();
    return std::log(ci95.high / ci95.low) / 2;
  };
  const double without = half(compare(make_report({one, two}), make_report(slower)));
  CHECK(half(compare(a, b)) == Approx(std::hypot(without, 1.959964 * std::log(1.2))));

  // With controls of the other kind only, those have to do.
  const Json c = make_report({one, two}, {make_control(two, 1.5)});
  CHECK(change_of(compare(c, c), one_name).verdict == std::nullopt);
}

TEST_CASE("controls and peers are no regressions", "[compare]") {
  const auto report = [](double factor) {
    Json control = make_run("01_single_gpu", 1, times(factor, quiet_ms));
    control["name"] = "T/weak/01_single_gpu/ranks:1/control";
    control["kind"] = "control";
    Json peer = make_run("pytorch", 2, times(factor, quiet_ms));
    peer["kind"] = "peer";
    return make_report({control, peer});
  };
  const ReportComparison comparison = compare(report(1), report(2));
  REQUIRE(comparison.runs.size() == 1);
  CHECK(comparison.runs[0].kind == "peer");
  CHECK(comparison.runs[0].verdict == "slower");
  CHECK(comparison.regressions == 0);
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
  CHECK(lost.regressions == 1);
  CHECK(lost.runs.size() == 1);

  const ReportComparison found = compare(bad, good);
  REQUIRE(found.errors.size() == 1);
  CHECK(found.errors[0].a == "exit code 1");
  CHECK_FALSE(found.errors[0].lost_speed);
  CHECK(found.regressions == 0);

  const ReportComparison both = compare(bad, bad);
  CHECK(both.errors.empty());
  CHECK(both.errors_in_both == 1);
  CHECK(both.regressions == 0);
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
  std::ranges::transform(comparison.changes, std::back_inserter(fields), &FieldChange::field);
  CHECK(fields == std::vector<std::string>{"machine.host", "settings.repetitions",
                                           "software.launchers.mpirun.path"});
  CHECK(comparison.changes[1].a == 5);
  CHECK(comparison.changes[1].b.is_null());
  CHECK(comparison.machine_differs == std::vector<std::string>{"host"});
  REQUIRE(comparison.parity.size() == 1);
  CHECK(comparison.parity[0].b.moved == 1.5);
  CHECK(comparison.parity[0].runs == std::vector<std::string>{"T/weak/01_single_gpu/ranks:1"});
  REQUIRE(comparison.drift.size() == 1);
  CHECK(comparison.drift[0].ratio == 1.0);

  CHECK(compare(a, a).changes.empty());
  CHECK(compare(a, a).parity.empty());
  for (const char* const section : {"machine", "software", "settings"}) {
    b["ddp_scaling"][section] = Json::object();
  }
  CHECK(compare(b, b).changes.empty());
  CHECK_THROWS_AS(compare(a, make_report({make_run("03_ddp_spawn", 2, quiet_ms)})),
                  ddp::UsageError);
}

TEST_CASE("training that ends elsewhere or agrees no longer is a change of parity", "[compare]") {
  const auto changes = [](const Json& a, const Json& b) {
    Json run = make_run("03_ddp_spawn", 2, quiet_ms);
    run["parity"].update(a);
    const Json before = make_report({run});
    run["parity"].update(b);
    return compare(before, make_report({run})).parity.size();
  };
  const Json ok = {{"moved", 1.408}, {"ok", true}};
  CHECK(changes(ok, {{"moved", 1.40805}}) == 0);
  CHECK(changes({{"moved", nullptr}, {"ok", false}}, Json::object()) == 0);
  CHECK(changes(ok, {{"moved", 1.409}}) == 1);
  CHECK(changes(ok, {{"ok", false}}) == 1);
  CHECK(changes(ok, {{"moved", nullptr}}) == 1);
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
  const ReportFolder folder;
  const Json one = make_run("01_single_gpu", 1, quiet_ms);
  folder.write("a.json", make_report({one, make_run("03_ddp_spawn", 2, quiet_ms)}));
  folder.write("b.json", make_report({one, make_run("03_ddp_spawn", 2, times(1.1, quiet_ms))}));

  const auto same = folder.bench({"compare", "a.json", "a.json"});
  CHECK(same.exit_code == 0);
  CHECK(same.err.empty());
  CHECK(contains(same.out, "0 slower beyond 5 %, 2 unchanged, 0 faster, 0 without a verdict"));

  const auto slower = folder.bench({"compare", "a.json", "b.json"});
  CHECK(slower.exit_code == 1);
  CHECK(contains(slower.out, "+10.0 %"));
  CHECK(contains(slower.out, "1 slower beyond 5 %, 1 unchanged"));
  CHECK(folder.bench({"compare", "b.json", "a.json"}).exit_code == 0);
  CHECK(folder.bench({"compare", "a.json", "b.json", "--threshold", "20%"}).exit_code == 0);
  CHECK(folder.bench({"compare", "--threshold=0.2", "a.json", "b.json"}).exit_code == 0);

  const auto document = folder.bench({"compare", "--json", "a.json", "b.json"});
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

  CHECK(folder.bench({"compare", "a.json", "b.json", "--json", "c.json"}).exit_code == 1);
  std::ifstream written(folder.path("c.json"));
  CHECK(Json::parse(written) == json);

  CHECK(folder.bench({"compare", "--help"}).exit_code == 0);
}

TEST_CASE("the record has every field of a report, in its order", "[compare]") {
  // The test report_schema shows that this document uses every field of the schema.
  std::ifstream file(std::string(DDP_SOURCE_DIR) + "/tests/data/report_minimal.json");
  const Json document = Json::parse(file);
  const ReportFile read = parse_report("report_minimal.json", document);
  CHECK(to_json(read.report) == document.at("ddp_scaling"));
}

TEST_CASE("a report whose comparisons do not tell their kind yet is read", "[compare]") {
  std::ifstream file(std::string(DDP_SOURCE_DIR) + "/tests/data/report_minimal.json");
  Json document = Json::parse(file);
  for (Json& comparison : document["ddp_scaling"]["comparisons"]) {
    comparison.erase("kind");
  }
  const ReportFile read = parse_report("before.json", document);
  REQUIRE_FALSE(read.report.comparisons.empty());
  CHECK(read.report.comparisons.front().kind == "baseline");
}

TEST_CASE("a report of version 1 is read as one of version 2", "[compare]") {
  Json now = make_report({make_run("01_single_gpu", 1, {1.0, 1.1, 0.9})});
  Json then = now;
  then["ddp_scaling"]["schema_version"] = 1;
  Json& run = then["ddp_scaling"]["runs"][0];
  for (const char* const later : {"repetitions", "slow_launches", "layers", "threads", "flops"}) {
    run.erase(later);
  }
  run["samples_ms"] = {1.0, 1.1, 0.9};
  run["repetition_medians_ms"] = {1.0, nullptr, 1.1, 0.9};
  then["ddp_scaling"].erase("conclusions");
  const ReportFile read = parse_report("then.json", then);
  CHECK(read.report.schema_version == 2);
  CHECK(read.document.at("ddp_scaling").at("schema_version") == 2);
  const Run& old = read.report.runs.at(0);
  CHECK(old.known_medians_ms() == std::vector{1.0, 1.1, 0.9});
  CHECK(old.repetitions.size() == 4);
  CHECK_FALSE(old.repetitions.at(1));
  CHECK(compare_reports(read, parse_report("now.json", now), 0.05).runs.at(0).ratio == 1.0);
  // Still older ones had no medians: their typical step is known, their repetitions are not.
  run.erase("repetition_medians_ms");
  const Run oldest = parse_report("then.json", then).report.runs.at(0);
  CHECK(oldest.known_medians_ms().empty());
  CHECK(oldest.typical_step_ms() == 1.0);
  for (const Json& wrong : {Json("fast"), Json{"fast"}, Json{{1.0}}}) {
    run["repetition_medians_ms"] = wrong;
    CHECK_THROWS_AS(parse_report("then.json", then), ddp::UsageError);
  }
}

TEST_CASE("what is no report is refused in one line", "[compare]") {
  const ReportFolder folder;
  const Json good = make_report({make_run("01_single_gpu", 1, quiet_ms)});
  const auto check_refusal = [&](const std::string& text, const std::string& error) {
    CAPTURE(text.substr(0, 300), error);
    folder.write("bad.json", text);
    try {
      read_report(folder.path("bad.json"));
      FAIL_CHECK("it is accepted");
    } catch (const ddp::UsageError& refusal) {
      CHECK(contains(refusal.what(), error));
      CHECK(contains(refusal.what(), "bad.json"));
      CHECK_FALSE(contains(refusal.what(), "\n"));
    }
  };
  check_refusal("", "bad.json:1: not JSON");
  check_refusal("{\n\"ddp_scaling\": {\n", "bad.json:3: not JSON");
  check_refusal("{\"ddp_scaling\": NaN}", "bad.json:1: not JSON");
  check_refusal("{\"x\": 1e999}", "too large");
  check_refusal("[]", "\"ddp_scaling\"");
  check_refusal("{\"context\": {}}", "\"ddp_scaling\"");
  check_refusal(std::string(100000, '['), "nested");

  const Json run = good.at("ddp_scaling").at("runs").at(0);
  const Json control = {
      {"kind", "control"}, {"a", "x"}, {"b", "y"}, {"ratio_median", 1}, {"pairs", 1}};
  struct Damage {
    const char* place;
    Json value;
    const char* error;
  };
  for (const auto& [place, value, error] : std::vector<Damage>{
           {"", 7, "/ddp_scaling: expected an object, got 7"},
           {"/schema_version", 3, "/ddp_scaling/schema_version: expected 1 or 2, got 3"},
           {"/runs", "many", "/ddp_scaling/runs: expected a list, got \"many\""},
           {"/runs/0", nullptr, "/ddp_scaling/runs/0: expected an object, got null"},
           {"/runs/0/name", 5, "/ddp_scaling/runs/0/name: expected text, got 5"},
           {"/runs/0/repetitions/2/median_ms", -1, "expected a number above 0, or null"},
           {"/runs/0/repetitions/2/median_ms", "fast", "got \"fast\""},
           {"/runs/0/world_size", 2.5, "expected a whole number, got 2.5"},
           {"/runs/0/global_batch", 0, "expected a number above 0, got 0"},
           {"/runs/0/step_ms", nullptr, "/step_ms: expected an object, got null"},
           {"/runs/0/gpu", 7, "/gpu: expected an object, got 7"},
           {"/runs/0/prediction/algorithm", "star", "expected ring or tree"},
           {"/runs/0/comm", Json::object(), "no /ddp_scaling/runs/0/comm/bucket_bytes"},
           {"/runs/0/parity/ok", nullptr, "expected true or false, got null"},
           {"/runs/1", run,
            "expected a name that no other run has, got \"T/weak/01_single_gpu/ranks:1\""},
           {"/comparisons/0", {{"kind", "control"}}, "no /ddp_scaling/comparisons/0/a"},
           {"/comparisons/0", control, "expected the name of a run, got \"y\""},
       }) {
    Json document = good;
    document[Json::json_pointer(std::string("/ddp_scaling") + place)] = value;
    check_refusal(document.dump(), error);
  }
  for (const char* key : {"runs", "machine", "settings", "software", "partial", "not_run",
                          "comparisons", "schema_version"}) {
    Json document = good;
    document["ddp_scaling"].erase(key);
    check_refusal(document.dump(), key);
  }
}

TEST_CASE("a wrong command line is refused in one line", "[compare]") {
  const ReportFolder folder;
  folder.write("a.json", make_report({make_run("01_single_gpu", 1, quiet_ms)}));
  folder.write("other.json", make_report({make_run("03_ddp_spawn", 2, quiet_ms)}));
  folder.write("bad.json", Json::array());
  CHECK(folder.bench({"compare", "a.json", "bad.json"}).out.empty());
  folder.check_refusals(
      "compare",
      {
          {{}, "A is required"},
          {{"a.json"}, "B is required"},
          {{"a.json", "a.json", "a.json"}, "a.json"},
          {{"a.json", "missing.json"}, "missing.json: cannot be read (No such file or directory)"},
          {{"a.json", "."}, ".: is a folder"},
          {{"a.json", "bad.json"}, "bad.json: no member \"ddp_scaling\""},
          {{"bad.json", "a.json"}, "bad.json: no member \"ddp_scaling\""},
          {{"a.json", "a.json", "--foo"}, "--foo"},
          {{"a.json", "a.json", "--threshold", "5"}, "such as 5% or 0.05, got \"5\""},
          {{"a.json", "a.json", "--threshold"}, "--threshold"},
          {{"a.json", "a.json", "--json", "nowhere/c.json"}, "nowhere/c.json"},
          {{"a.json", "other.json"}, "none of its 1 runs has the name of one in a.json"},
      });
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
  for (const auto& [a, b, sd_a, sd_b] :
       {Case{3, 3, 0.03, 0.03}, Case{5, 5, 0.03, 0.03}, Case{10, 10, 0.03, 0.03},
        Case{3, 3, 0.30, 0.30}, Case{5, 5, 0.02, 0.08}, Case{5, 10, 0.03, 0.03}}) {
    CAPTURE(a, b, sd_a, sd_b);
    constexpr int kTrials = 4000;
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const auto interval =
          welch_ratio_ci95(noise.step_times(1, sd_a, a), noise.step_times(1, sd_b, b));
      REQUIRE(interval);
      covered += interval->low <= 1 && 1 <= interval->high ? 1 : 0;
    }
    CHECK(covered >= 0.93 * kTrials);
    // An interval that holds everything would pass too.
    CHECK(covered <= 0.985 * kTrials);
  }
}

TEST_CASE("a machine of another speed makes no program slower", "[compare]") {
  const auto report = [](double step_ms, double gflops) {
    Json document = make_report({make_run("program", 1, std::vector<double>(6, step_ms)),
                                 make_run("program", 4, std::vector<double>(6, step_ms))},
                                {});
    for (const int world_size : {1, 2}) {
      document["ddp_scaling"]["limits"].push_back({{"device", "cpu"},
                                                   {"world_size", world_size},
                                                   {"fp32_gflops", gflops * world_size},
                                                   {"memory_bandwidth_gbps", nullptr},
                                                   {"memory", Json::array()},
                                                   {"kernel_launch_us", nullptr}});
    }
    return document;
  };
  const auto verdict = [](const ReportComparison& comparison, int ranks) {
    return change_of(comparison, "T/weak/program/ranks:" + std::to_string(ranks)).verdict;
  };
  for (const int ranks : {1, 4}) {  // for four ranks that of two stands
    CHECK(verdict(compare(report(1, 100), report(1.5, 100)), ranks) == "slower");
    CHECK(verdict(compare(report(1, 100), report(1.5, 70)), ranks) == std::nullopt);
    CHECK(verdict(compare(report(1.5, 70), report(1, 100)), ranks) == std::nullopt);
    CHECK(verdict(compare(report(1, 100), report(1.5, 99)), ranks) == "slower");
  }
  const std::vector<RateDrift> drift = compare(report(1, 100), report(1, 70)).rate_drift;
  REQUIRE(drift.size() == 2);
  CHECK(drift[1].world_size == 2);
  CHECK(drift[1].ratio == Approx(0.7));
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
  const auto count_agreeing = [](const ReportComparison& comparison) {
    return std::ranges::count_if(comparison.runs, [](const RunChange& change) {
      return change.ci95 && change.ci95->low <= 1 && 1 <= change.ci95->high;
    });
  };
  constexpr int kPairs = 300;
  constexpr double kIntervals = 6 * kPairs;
  std::ptrdiff_t agree = 0;
  std::ptrdiff_t agree_without_controls = 0;
  int found = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    Json a = report(1);
    Json b = report(1);
    agree += count_agreeing(compare(a, b));
    found += change_of(compare(a, report(1.1)), "T/weak/program0/ranks:1").verdict == "slower";
    a["ddp_scaling"]["comparisons"] = Json::array();
    b["ddp_scaling"]["comparisons"] = Json::array();
    agree_without_controls += count_agreeing(compare(a, b));
  }
  CHECK(static_cast<double>(agree) >= 0.95 * kIntervals);
  CHECK(static_cast<double>(agree_without_controls) < 0.95 * kIntervals);
  CHECK(found >= 0.95 * kPairs);
}

}  // namespace
