#include "bench/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Rows of all ranks for a step. Times are in milliseconds since the first row of the file ended,
/// so that they are exact.
struct JobStep {
  int rows = 0;
  double sum_ms = 0;
  double begin_ms = kInfinity;
  double end_ms = -kInfinity;
};
using JobSteps = std::map<std::int64_t, JobStep>;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ExitCode::kTrainingFailed, "metrics: " + what);
}

void read_summary(const json& summary, Metrics& metrics) {
  metrics.global_batch = summary.at("global_batch").get<std::int64_t>();
  const json& moved = summary.at("moved");  // null if a weight is NaN
  metrics.moved = moved.is_null() ? std::numeric_limits<double>::quiet_NaN() : moved.get<double>();
  metrics.first_step_unix_ms = summary.at("first_step_unix_ms").get<double>();
  for (const json& of_rank : summary.at("peak_rss_mib")) {
    metrics.peak_rss_mib += of_rank.get<double>();
  }
}

/// @return the steps; fills `metrics` from the summary
JobSteps read_lines(std::ifstream& file, Metrics& metrics) {
  JobSteps steps;
  bool has_summary = false;
  std::optional<std::int64_t> first_ns;
  int number = 0;
  try {
    for (std::string text; std::getline(file, text);) {
      ++number;
      const json line = json::parse(text);
      has_summary = line.contains("summary");
      if (has_summary) {
        read_summary(line.at("summary"), metrics);
        continue;
      }
      const auto end_ns = line.at("end_ns").get<std::int64_t>();
      first_ns = first_ns.value_or(end_ns);
      const double end_ms = static_cast<double>(end_ns - *first_ns) * 1e-6;
      const double step_ms = line.at("step_ms").get<double>();
      JobStep& step = steps[line.at("step").get<std::int64_t>()];
      ++step.rows;
      step.sum_ms += step_ms;
      step.begin_ms = std::min(step.begin_ms, end_ms - step_ms);
      step.end_ms = std::max(step.end_ms, end_ms);
    }
  } catch (const json::exception& error) {
    fail(fmt::format("line {} is malformed: {}", number, error.what()));
  }
  if (!has_summary) {
    fail("the last line is no summary: the program was cut off");
  }
  return steps;
}

}  // namespace

Metrics read_metrics(const std::string& path, int ranks, bool one_host) {
  std::ifstream file(path);
  if (!file) {
    fail("the program wrote none");
  }
  Metrics metrics;
  const JobSteps steps = read_lines(file, metrics);
  if (steps.empty()) {
    fail("no step was written");
  }
  double ended_ms = -kInfinity;
  for (const auto& [number, step] : steps) {
    const std::int64_t expected = std::ssize(metrics.steps_ms);
    if (number != expected || step.rows != ranks) {
      fail(fmt::format("got {} rows for step {}, expected {} for step {}", step.rows, number, ranks,
                       expected));
    }
    // See Note [The job's step].
    const double step_ms =
        one_host ? step.end_ms - std::max(step.begin_ms, ended_ms) : step.sum_ms / ranks;
    if (!(step_ms > 0)) {
      fail(fmt::format("step {} did not end after the one before", number));
    }
    metrics.steps_ms.push_back(std::round(step_ms * 1e6) / 1e6);  // whole nanoseconds
    ended_ms = step.end_ms;
  }
  return metrics;
}

}  // namespace ddp::bench
