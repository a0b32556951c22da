// tests/support/report_documents.hpp - reports of bench made up in memory, a folder in which bench
// reads them, and normal noise.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/report/field_json.hpp"
#include "bench/report/record.hpp"
#include "common/base/scratch_folder.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"

namespace ddp::test {

using Json = nlohmann::ordered_json;

/// Standard normal numbers that are the same on every platform.
class NormalNoise {
 public:
  explicit NormalNoise(std::uint64_t seed) : engine_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::acos(-1.0) * uniform());
  }
  /// Step times around `typical_ms`, whose logarithms have the standard deviation `sd`.
  std::vector<double> step_times(double typical_ms, double sd, int n) {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
      values.push_back(typical_ms * std::exp(sd * (*this)()));
    }
    return values;
  }

 private:
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) / 9007199254740992.0; }
  std::mt19937_64 engine_;
};

/// One of runs[].
inline Json make_run(const std::string& program, int ranks, const std::vector<double>& medians_ms) {
  bench::Run run;
  run.name = "T/weak/" + program + "/ranks:" + std::to_string(ranks);
  run.stage = program;
  run.model = "T";
  run.world_size = ranks;
  run.global_batch = 32 * ranks;
  run.step_ms = bench::summarize(medians_ms);
  for (const double median_ms : medians_ms) {
    run.repetitions.emplace_back(bench::Repetition()).value().median_ms = median_ms;
  }
  run.parity = {1.408, 1.408, true};
  return bench::as_json(run);
}

/// A repetition for each of these, which may be null.
inline void set_medians(Json& run, const std::vector<Json>& medians_ms) {
  run["repetitions"] = Json::array();
  for (const Json& median_ms : medians_ms) {
    run["repetitions"].push_back({{"median_ms", median_ms}});
  }
}

inline Json with_error(Json run, const std::string& error) {
  run["error"] = error;
  run["repetitions"] = Json::array();
  run["step_ms"] = bench::as_json(bench::Distribution());
  return run;
}

inline Json make_control(const Json& run, double ratio) {
  bench::Comparison control;
  control.kind = "control";
  control.a = run.at("name").get<std::string>() + "/control";
  control.b = run.at("name");
  control.ratio_median = ratio;
  control.ci95 = {ratio * 0.99, ratio * 1.01};
  control.pairs = 6;
  return bench::as_json(control);
}

inline Json make_report(const std::vector<Json>& runs, const std::vector<Json>& comparisons = {}) {
  Json benchmarks = Json::array();
  for (const Json& run : runs) {
    benchmarks.push_back({{"name", run.at("name").get<std::string>() + bench::kBenchmarkSuffix},
                          {"family_index", benchmarks.size()},
                          {"real_time", 1.0}});
  }
  bench::Report report;
  report.machine = {{"host", "here"}, {"cores", 2}, {"load_average", {0.1, 0.2, 0.3}}};
  report.software = {
      {"compiler", "g++ 12"}, {"git_commit", "abc"}, {"launchers", {{"mpirun", nullptr}}}};
  report.settings = {{"command", "bench --json"}, {"repetitions", 5}, {"seed", 42}};
  Json scaling = bench::to_json(report);
  scaling["runs"] = runs;
  scaling["comparisons"] = comparisons;
  return {{"context", {{"date", "2026-11-21T05:35:39+00:00"}}},
          {"benchmarks", benchmarks},
          {"ddp_scaling", scaling}};
}

/// A folder with reports, and bench run on them.
class ReportFolder {
 public:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  void write(const std::string& name, const Json& document) const { write(name, document.dump()); }

  RunResult bench(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), std::string(DDP_BIN_DIR) + "/bench");
    RunOptions options;
    options.cwd = folder_.path();
    return run_program(arguments, options);
  }

  struct Refusal {
    std::vector<std::string> arguments;
    std::string error;
  };
  /// Each of these ends with exit code 2 and one line, which holds `error`.
  void check_refusals(const std::string& command, const std::vector<Refusal>& refusals) const {
    for (Refusal refusal : refusals) {
      CAPTURE(refusal.arguments);
      refusal.arguments.insert(refusal.arguments.begin(), command);
      const RunResult result = bench(refusal.arguments);
      CHECK(result.exit_code == 2);
      CHECK(result.err.find(refusal.error) != std::string::npos);
      CHECK(std::ranges::count(result.err, '\n') == 1);
    }
  }

 private:
  ScratchFolder folder_{"ddp-report-test"};
};

}  // namespace ddp::test
