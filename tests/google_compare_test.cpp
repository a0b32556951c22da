// Google Benchmark's own compare.py reads two reports and finds their difference.
#include <fstream>

#include "bench/report.hpp"
#include "common/base/files.hpp"
#include "tests/catch.hpp"
#include "tests/support/made_up_reports.hpp"
#include "tests/support/run_program.hpp"

namespace {

using namespace ddp::bench;

Report make_report(double step_ms) {
  Report report;
  report.runs = {
      ddp::test::make_run("01_single_gpu"),
      ddp::test::make_run("03_ddp_spawn", {.launcher = "spawn", .backend = "shm", .ranks = 2})};
  for (int block = 0; block < 9; ++block) {
    ddp::test::add_repetition(report.runs[0], block, step_ms + 0.001 * block);
  }
  ddp::test::add_repetition(report.runs[1], 0, step_ms);
  report.runs[1].error = "exit code 1";
  ddp::test::conclude(report);
  return report;
}

TEST_CASE("compare.py compares two reports", "[google_compare]") {
  const ddp::ScratchFolder folder("ddp-google-compare");
  for (const auto& [name, step_ms] : {std::pair("/a.json", 2.0), std::pair("/b.json", 3.0)}) {
    std::ofstream(folder.path() + name) << google_benchmark_document(make_report(step_ms)).dump(1);
  }
  const ddp::test::RunResult result =
      ddp::test::run_program({DDP_TORCH_PYTHON, DDP_GOOGLE_COMPARE, "--no-color", "benchmarks",
                              folder.path() + "/a.json", folder.path() + "/b.json"});
  CAPTURE(result.out, result.err);
  REQUIRE(result.exit_code == 0);
  int rows = 0;
  bool tested = false;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = ddp::test::words(line);
    if (words.size() == 7 && words[0].starts_with("M/weak/01_single_gpu")) {
      ++rows;
      CHECK(std::stod(words[1]) == Approx(0.5).margin(0.01));
    }
    tested = tested || line.find("_pvalue") != std::string::npos;
  }
  CHECK(rows == 9);
  CHECK(tested);
}

TEST_CASE("each launch has its speed, and a run without one is an error", "[google_compare]") {
  const auto document = google_benchmark_document(make_report(2));
  REQUIRE(document["benchmarks"].size() == 10);
  CHECK(document["benchmarks"].back().at("error_message") == "exit code 1");
  for (int block = 0; block < 9; ++block) {
    const auto& entry = document["benchmarks"][static_cast<std::size_t>(block)];
    const double step_ms = 2 + 0.001 * block;
    CHECK(entry["real_time"].get<double>() == Approx(step_ms));
    CHECK(entry["samples_per_second"].get<double>() == Approx(64 / step_ms * 1e3));
  }
}

}  // namespace
