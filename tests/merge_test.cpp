// bench merge: what is kept, what is dropped with a word, and what is refused.
#include "bench/report/merge.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "bench/report/report_file.hpp"
#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"
#include "tests/support/report_documents.hpp"

namespace {

using namespace ddp::bench;
using ddp::test::Json;
using ddp::test::make_control;
using ddp::test::make_report;
using ddp::test::make_run;
using ddp::test::ReportFolder;
using ddp::test::with_error;

const std::vector<double> times_ms = {1.0, 1.1, 1.2};

Json merge(const std::vector<Json>& documents) {
  std::vector<ReportFile> reports;
  for (const Json& document : documents) {
    reports.push_back(
        parse_report(std::string(1, static_cast<char>('A' + reports.size())), document));
  }
  return merge_reports(reports);
}

/// A report of so many nodes with two ranks each, and its own stage 01.
Json report_of(int nodes, double baseline_ms = 1) {
  Json baseline = make_run("01_single_gpu", 1, {baseline_ms, baseline_ms, baseline_ms});
  Json run = make_run("05_multinode", 2 * nodes, times_ms);
  run["nodes"] = nodes;
  Json report = make_report({baseline, run}, {make_control(baseline, 1 + 0.01 * nodes)});
  report["ddp_scaling"]["machine"]["host"] = "node" + std::to_string(nodes);
  report["ddp_scaling"]["settings"]["command"] = "bench --nodes " + std::to_string(nodes);
  report["ddp_scaling"]["not_run"] = {{{"what", "mpirun"}, {"reason", "not there"}}};
  report["ddp_scaling"]["assumptions"] = {"one network"};
  report["ddp_scaling"]["all_reduce"] = {as_json(AllReduceSample{"gloo", "cpu", 2 * nodes, 1024})};
  return report;
}

std::string refusal(const std::vector<Json>& documents) {
  try {
    merge(documents);
  } catch (const ddp::UsageError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> run_names(const Json& document) {
  std::vector<std::string> names;
  for (const Json& run : document.at("ddp_scaling").at("runs")) {
    names.push_back(run.at("name"));
  }
  return names;
}

TEST_CASE("reports of several node counts become one that is read like any other", "[merge]") {
  const Json merged = merge({report_of(1), report_of(2, 1.25), report_of(4, 0.8)});
  const Json& scaling = merged.at("ddp_scaling");
  CHECK(run_names(merged) ==
        std::vector<std::string>{"T/weak/01_single_gpu/ranks:1", "T/weak/05_multinode/ranks:2",
                                 "T/weak/05_multinode/ranks:4", "T/weak/05_multinode/ranks:8"});
  CHECK(scaling.at("runs").at(0).at("repetitions").at(0).at("median_ms") == 1.0);
  CHECK(scaling.at("machine").at("host") == "node1");
  CHECK(scaling.at("merged_from") ==
        Json::parse(R"([{"command": "bench --nodes 1", "host": "node1", "nodes": 1},
                        {"command": "bench --nodes 2", "host": "node2", "nodes": 2},
                        {"command": "bench --nodes 4", "host": "node4", "nodes": 4}])"));
  CHECK(scaling.at("partial") == false);
  CHECK(scaling.at("comparisons").size() == 3);
  CHECK(scaling.at("all_reduce").size() == 3);
  CHECK(scaling.at("assumptions").size() == 1);

  // Of the baselines the first is kept, and a reader learns how far the others were from it.
  const Json& not_run = scaling.at("not_run");
  REQUIRE(not_run.size() == 3);
  CHECK(std::count(not_run.begin(), not_run.end(),
                   Json{{"what", "mpirun"}, {"reason", "not there"}}) == 1);
  CHECK(std::count(not_run.begin(), not_run.end(),
                   Json{{"what", "T/weak/01_single_gpu/ranks:1 of B"},
                        {"reason",
                         "measured in A already; its step time here is 1.25 of that one"}}) == 1);

  // Google Benchmark's part: one entry per run kept, each family with a number of its own.
  std::set<int> families;
  for (const Json& entry : merged.at("benchmarks")) {
    families.insert(entry.at("family_index").get<int>());
  }
  CHECK(merged.at("benchmarks").size() == 4);
  CHECK(families.size() == 4);

  const ReportFile read = parse_report("merged", merged);
  CHECK(read.report.runs.size() == 4);
  CHECK(read.report.comparisons.size() == 3);
}

TEST_CASE("merging in steps gives the same as at once", "[merge]") {
  const Json a = report_of(1);
  const Json b = report_of(2);
  const Json c = report_of(4);
  const Json at_once = merge({a, b, c});
  const Json in_steps = merge({merge({a, b}), c});
  CHECK(run_names(at_once) == run_names(in_steps));
  CHECK(at_once.at("ddp_scaling").at("merged_from") ==
        in_steps.at("ddp_scaling").at("merged_from"));
  CHECK(at_once.at("benchmarks") == in_steps.at("benchmarks"));
}

TEST_CASE("one interrupted report makes the whole partial", "[merge]") {
  Json partial = report_of(2);
  partial["ddp_scaling"]["partial"] = true;
  for (const Json& merged : {merge({report_of(1), partial}), merge({partial, report_of(1)})}) {
    CHECK(merged.at("ddp_scaling").at("partial") == true);
  }
}

TEST_CASE("the control of stage 01 is dropped like stage 01 itself", "[merge]") {
  const auto with_control = [](int nodes) {
    Json report = report_of(nodes);
    Json control = make_run("01_single_gpu", 1, times_ms);
    control["name"] = "T/weak/01_single_gpu/ranks:1/control";
    control["kind"] = "control";
    report["ddp_scaling"]["runs"].push_back(control);
    return report;
  };
  CHECK(run_names(merge({with_control(1), with_control(2)})).size() == 4);
}

TEST_CASE("a baseline without a speed is dropped with that word", "[merge]") {
  Json second = report_of(2);
  Json& baseline = second["ddp_scaling"]["runs"][0];
  baseline = with_error(baseline, "exit code 1");
  const Json merged = merge({report_of(1), second});
  CHECK(merged.at("ddp_scaling").at("not_run").back().at("reason") ==
        "measured in A already, without a speed here");
}

TEST_CASE("what is not of one allocation and build is not merged", "[merge]") {
  CHECK(refusal({report_of(1), report_of(2)}).empty());
  CHECK(refusal({report_of(2), report_of(2)}) ==
        "B: T/weak/05_multinode/ranks:4 is in A too, expected each configuration once");
  const std::string scaling = "/ddp_scaling";
  for (const auto& [place, error] :
       {std::pair(
            "/runs/0/global_batch",
            "B: the global batch of T/weak/01_single_gpu/ranks:1 is 7, expected that of A, 32"),
        std::pair("/software/git_commit", "B: software.git_commit is 7, expected that of A"),
        std::pair("/software/compiler", "B: software.compiler is 7, expected that of A"),
        std::pair("/settings/seed", "B: settings.seed is 7, expected that of A")}) {
    CAPTURE(place);
    Json other = report_of(2);
    other[Json::json_pointer(scaling + place)] = 7;
    CHECK(refusal({report_of(1), other}).starts_with(error));
  }
}

TEST_CASE("the program writes the merged report and replaces no measurement", "[merge]") {
  const ReportFolder folder;
  folder.write("1.json", report_of(1));
  folder.write("2.json", report_of(2));
  // Twice: a merged report may be written over.
  for (int i = 0; i < 2; ++i) {
    const auto result = folder.bench({"merge", "all.json", "1.json", "2.json"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(result.out.empty());
    CHECK(read_report(folder.path("all.json")).report.runs.size() == 3);
  }
  folder.check_refusals("merge",
                        {
                            {{"1.json", "2.json"}, "1.json exists and is no merged report"},
                            {{"new.json"}, "REPORT is required"},
                            {{}, "OUT is required"},
                            {{"new.json", "1.json", "missing.json"}, "missing.json"},
                            {{"new.json", "1.json", "1.json"}, "05_multinode"},
                            {{"nowhere/new.json", "1.json", "2.json"}, "nowhere/new.json"},
                            {{"new.json", "1.json", "--foo"}, "--foo"},
                        });
  CHECK_FALSE(std::filesystem::exists(folder.path("new.json")));
  CHECK(read_report(folder.path("1.json")).report.runs.size() == 2);
}

}  // namespace
