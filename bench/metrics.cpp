#include "bench/metrics.hpp"

#include <fmt/format.h>

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

struct Row {
  double step_ms;
  std::int64_t end_ns;  ///< on the host's steady clock
};
using Steps = std::map<std::int64_t, std::vector<Row>>;  // by step, a row for each rank

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

/// @return the rows; fills `metrics` from the summary
Steps read_lines(std::ifstream& file, Metrics& metrics) {
  Steps steps;
  bool has_summary = false;
  int number = 0;
  try {
    for (std::string text; std::getline(file, text);) {
      ++number;
      const json line = json::parse(text);
      has_summary = line.contains("summary");
      if (has_summary) {
        read_summary(line.at("summary"), metrics);
      } else {
        steps[line.at("step").get<std::int64_t>()].push_back(
            {line.at("step_ms").get<double>(), line.at("end_ns").get<std::int64_t>()});
      }
    }
  } catch (const json::exception& error) {
    fail(fmt::format("line {} is malformed: {}", number, error.what()));
  }
  if (!has_summary) {
    fail("the last line is no summary: the program was cut off");
  }
  return steps;
}

/// See Note [The job's step].
std::vector<double> combine_ranks(const Steps& steps, bool one_host) {
  std::vector<double> steps_ms;
  const std::int64_t first_ns = steps.begin()->second.front().end_ns;  // keeps milliseconds exact
  double ended_ms = -std::numeric_limits<double>::infinity();
  for (const auto& [step, rows] : steps) {
    double sum_ms = 0;
    double begin_ms = std::numeric_limits<double>::infinity();
    double end_ms = -begin_ms;
    for (const Row& row : rows) {
      const double row_end_ms = static_cast<double>(row.end_ns - first_ns) * 1e-6;
      sum_ms += row.step_ms;
      begin_ms = std::min(begin_ms, row_end_ms - row.step_ms);
      end_ms = std::max(end_ms, row_end_ms);
    }
    const double step_ms = one_host ? end_ms - std::max(begin_ms, ended_ms)
                                    : sum_ms / static_cast<double>(rows.size());
    if (!(step_ms > 0)) {
      fail(fmt::format("step {} did not end after the one before", step));
    }
    steps_ms.push_back(std::round(step_ms * 1e6) / 1e6);  // whole nanoseconds
    ended_ms = end_ms;
  }
  return steps_ms;
}

}  // namespace

Metrics read_metrics(const std::string& path, int ranks, bool one_host) {
  std::ifstream file(path);
  if (!file) {
    fail("the program wrote none");
  }
  Metrics metrics;
  const Steps steps = read_lines(file, metrics);
  std::int64_t expected = 0;
  for (const auto& [step, rows] : steps) {
    if (step != expected++ || std::ssize(rows) != ranks) {
      fail(fmt::format("got {} rows for step {}, expected {} for step {}", rows.size(), step, ranks,
                       expected - 1));
    }
  }
  if (steps.empty()) {
    fail("no step was written");
  }
  metrics.steps_ms = combine_ranks(steps, one_host);
  return metrics;
}

}  // namespace ddp::bench
