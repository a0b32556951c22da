// The rows of a program's --metrics become the steps of the job.
#include "bench/metrics.hpp"

#include <cmath>
#include <fstream>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "tests/support/catch.hpp"

namespace ddp::bench {
namespace {

constexpr double kBootNs = 4e16;  // steady clock of a host that has run for more than a year

constexpr const char* kSummary =
    R"({"summary":{"global_batch":64,"moved":0.5,"peak_rss_mib":[100,50.5]}})"
    "\n";

std::string row(int rank, int step, double end_ms, double step_ms) {
  return fmt::format("{{\"rank\":{},\"step\":{},\"end_ns\":{:.0f},\"step_ms\":{}}}\n", rank, step,
                     kBootNs + end_ms * 1e6, step_ms);
}

Metrics read(const std::string& text, int ranks, double run_ms = 1e9) {
  const ScratchFolder folder("ddp-metrics-test");
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path) << text;
  return read_metrics(path, ranks, run_ms);
}

void check_steps(const Metrics& metrics, const std::vector<double>& expected_ms) {
  REQUIRE(metrics.steps_ms.size() == expected_ms.size());
  for (std::size_t i = 0; i < expected_ms.size(); ++i) {
    CHECK(metrics.steps_ms[i] == Approx(expected_ms[i]).epsilon(1e-7));
  }
}

TEST_CASE("One rank's steps are the job's, and the summary says what they were for") {
  const Metrics metrics = read(row(0, 0, 10, 2) + row(0, 1, 13.1, 3.1) + kSummary, 1);
  check_steps(metrics, {2, 3.1});
  CHECK(metrics.global_batch == 64);
  CHECK(metrics.moved == 0.5);
  CHECK(metrics.first_end_ns == std::int64_t(kBootNs + 10e6));
  CHECK(metrics.has_summary);
  CHECK(metrics.peak_rss_mib == 150.5);
  // Weights that are no numbers are no error of the file.
  const std::string nothing = R"({"summary":{"global_batch":64,"moved":null,"peak_rss_mib":[]}})";
  CHECK(std::isnan(read(row(0, 0, 10, 2) + nothing + "\n", 1).moved));
}

TEST_CASE("A step ends with the last rank and begins where the one before ended") {
  // Rank 1 ends step 0 late, so its own step is longer, and so is rank 0's next step, which waits
  // for rank 1. The job's steps add up to the wall time.
  const std::string late = row(0, 0, 10, 2) + row(1, 0, 11, 3) + row(0, 1, 14, 4) +
                           row(1, 1, 14, 3) + row(0, 2, 16.5, 2.5) + row(1, 2, 16, 2);
  check_steps(read(late + kSummary, 2), {3, 3, 2.5});
  CHECK(read(late + kSummary, 2).first_end_ns == std::int64_t(kBootNs + 10e6));  // of rank 0
  // What lies between two epochs is no part of a step.
  const std::string epochs =
      row(0, 0, 10, 2) + row(1, 0, 10, 2) + row(0, 1, 112, 2) + row(1, 1, 113, 2);
  check_steps(read(epochs + kSummary, 2), {2, 3});
  // Over several hosts a step is the mean of its ranks'.
  const std::string hosts = row(0, 0, 10, 2) + row(1, 0, 9999, 3);
  check_steps(read(hosts + kSummary, 2, /*run_ms=*/0), {2.5});
}

TEST_CASE("A program's rows need no summary, and say losses and samples if they can") {
  const auto rows = [](const std::string& of_rank_0, const std::string& of_rank_1) {
    return fmt::format(R"({{"rank":0,"step":0,"step_ms":2{}}})"
                       "\n"
                       R"({{"rank":1,"step":0,"step_ms":4{}}})"
                       "\n",
                       of_rank_0, of_rank_1);
  };
  const auto no_clock = read(rows("", ""), 2);
  check_steps(no_clock, {3});  // the mean
  CHECK_FALSE((no_clock.has_summary || no_clock.global_batch || no_clock.first_end_ns));
  CHECK(no_clock.losses.empty());
  check_steps(read(rows(R"(,"end_ns":9000000)", ""), 2), {3});
  check_steps(read(rows(R"(,"end_ns":9000000)", R"(,"end_ns":9500000)"), 2), {4});
  const auto all = read(rows(R"(,"loss":1,"samples":30)", R"(,"loss":4,"samples":10)"), 2);
  CHECK(all.global_batch == 40);
  CHECK(all.losses == std::vector{1.75});
  CHECK(read(rows(R"(,"loss":1)", R"(,"loss":4)"), 2).losses == std::vector{2.5});
  CHECK(read(rows(R"(,"loss":1)", ""), 2).losses.empty());  // a rank does not say it
  CHECK(read(rows(R"(,"samples":9)", ""), 2).global_batch == std::nullopt);
  std::string steps;
  for (const int samples : {8, 32, 64}) {
    steps += fmt::format(R"({{"rank":0,"step":{},"step_ms":2,"samples":{}{}}})"
                         "\n",
                         samples / 32, samples, samples == 8 ? "" : R"(,"loss":1)");
  }
  CHECK(read(steps, 1).global_batch == 32);  // the median; 35 is the mean
  CHECK(read(steps, 1).losses.empty());  // a step does not say it
  // Samples that only some say are no weights.
  CHECK(read(rows(R"(,"loss":1,"samples":30)", R"(,"loss":4)"), 2).losses == std::vector{2.5});
  CHECK(read(rows(R"(,"samples":0.2)", R"(,"samples":0.2)"), 2).global_batch == std::nullopt);
  // Clocks that are farther apart than the program ran are two.
  const std::string far = rows(R"(,"end_ns":9000000)", R"(,"end_ns":9000000000)");
  check_steps(read(far, 2, /*run_ms=*/1000), {3});
  // A rank without samples has no loss; one whose loss is no number has.
  CHECK(read(rows(R"(,"loss":1,"samples":8)", R"(,"loss":null,"samples":0)"), 2).losses ==
        std::vector{1.0});
  CHECK(std::isnan(read(rows(R"(,"loss":1)", R"(,"loss":null)"), 2).losses.at(0)));
  CHECK_FALSE(read(row(0, 0, 10, 2) + kSummary + row(0, 1, 12, 2), 1).has_summary);  // cut off
}

TEST_CASE("A damaged file is refused in one line") {
  const std::string good = row(0, 0, 10, 2) + row(0, 1, 12, 2);
  const std::pair<std::string, const char*> cases[] = {
      {"", "no step was written"},
      {kSummary, "no step was written"},
      {good + "{" + kSummary, "line 3 is malformed"},
      {"[]\n" + good + kSummary, "line 1 is malformed"},
      {good + row(0, 1, 14, 2) + kSummary, "rank 0 wrote step 1 twice"},
      {good + row(0, 3, 14, 2) + kSummary, "got step 3, expected step 2"},
      {row(0, 0, 10, 0) + kSummary, "got step_ms 0 and samples nan in step 0"},
      {row(1, 0, 10, 2), "got rank 1, expected 0 to 0"},
      {row(-1, 0, 10, 2), "got rank -1, expected 0 to 0"},
      {R"({"rank":0,"step":0,"step_ms":2,"samples":1e16})", "samples 1e+16 in step 0"},
      {R"({"rank":0,"step":0,"step_ms":2,"samples":-1})", "samples -1 in step 0"},
      {good + row(0, 2, 11, 2) + kSummary, "did not end after the one before"},
      {good + R"({"rank":0,"step":2})" + "\n", "line 3 is malformed"},
      {good + R"({"rank":0,"step":2,"step_ms":2,"loss":"low"})" + "\n", "line 3 is malformed"},
      {good + R"({"summary":{"moved":1}})" + "\n", "line 3 is malformed"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text);
    try {
      read(text, 1);
      FAIL("it was read");
    } catch (const Error& error) {
      CHECK(test::contains(error.what(), message));
      CHECK_FALSE(test::contains(error.what(), "\n"));
      CHECK(error.code() == ExitCode::kTrainingFailed);
    }
  }
  const auto missing = test::message_of([] { read_metrics("/nonexistent", 1, 0); });
  CHECK(test::contains(missing, "wrote none"));
}

}  // namespace
}  // namespace ddp::bench
