#include "bench/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Row {
  double step_ms = kNan;  ///< not a number: that rank wrote none
  double end_ms = kNan;  ///< on the host's clock; peers may not tell
};

[[noreturn]] void fail(const std::string& what) {
  throw Error(ExitCode::kTrainingFailed, "metrics: " + what);
}

/// @param rows [step][rank]
void read_row(const json& line, std::size_t ranks, std::size_t lines,
              std::vector<std::vector<Row>>& rows) {
  const auto rank = line.at("rank").get<std::size_t>();
  const auto step = line.at("step").get<std::size_t>();
  if (rank >= ranks || step >= lines) {
    fail(fmt::format("got step {} of rank {}, expected {} ranks and at most {} steps", step, rank,
                     ranks, lines));
  }
  if (step >= rows.size()) {
    rows.resize(step + 1, std::vector<Row>(ranks));
  }
  Row& row = rows[step][rank];
  if (!std::isnan(row.step_ms)) {
    fail(fmt::format("step {} of rank {} was written twice", step, rank));
  }
  row.step_ms = line.at("step_ms").get<double>();
  if (!std::isfinite(row.step_ms) || row.step_ms <= 0) {
    fail(fmt::format("step {} of rank {} has no step time", step, rank));
  }
  const auto end_ms = line.find("end_ms");
  row.end_ms = end_ms != line.end() && end_ms->is_number() ? end_ms->get<double>() : kNan;
}

std::optional<double> optional_number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>())
                                                     : std::nullopt;
}

void read_summary(const json& summary, std::size_t ranks, Metrics& metrics) {
  metrics.global_batch = summary.at("global_batch").get<std::int64_t>();
  metrics.moved = summary.at("moved").is_null() ? kNan : summary.at("moved").get<double>();
  metrics.first_step_unix_ms = optional_number(summary, "first_step_unix_ms");
  const auto of_ranks = summary.value("peak_rss_mib", std::vector<double>());
  if (of_ranks.size() == ranks) {
    metrics.peak_rss_mib = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
  }
}

/// See Note [The job's step].
std::vector<double> combine_ranks(const std::vector<std::vector<Row>>& rows, bool has_clock) {
  std::vector<double> steps_ms;
  double ended_ms = -std::numeric_limits<double>::infinity();
  for (const std::vector<Row>& step : rows) {
    double sum_ms = 0;
    double begin_ms = std::numeric_limits<double>::infinity();
    double end_ms = -begin_ms;
    for (const Row& row : step) {
      sum_ms += row.step_ms;
      begin_ms = std::min(begin_ms, row.end_ms - row.step_ms);
      end_ms = std::max(end_ms, row.end_ms);
    }
    const double step_ms = has_clock ? end_ms - std::max(begin_ms, ended_ms)
                                     : sum_ms / static_cast<double>(step.size());
    if (!(step_ms > 0)) {
      fail(fmt::format("step {} did not end after the one before", steps_ms.size()));
    }
    steps_ms.push_back(std::round(step_ms * 1e6) / 1e6);  // what clocks resolve
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
  const auto lines =
      static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  file.clear();
  file.seekg(0);
  Metrics metrics;
  std::vector<std::vector<Row>> rows;  // [step][rank]
  bool has_summary = false;
  int number = 0;
  try {
    for (std::string text; std::getline(file, text);) {
      ++number;
      if (has_summary) {
        fail(fmt::format("line {} follows the summary", number));
      }
      const json line = json::parse(text);
      has_summary = line.contains("summary");
      if (has_summary) {
        read_summary(line.at("summary"), static_cast<std::size_t>(ranks), metrics);
      } else {
        read_row(line, static_cast<std::size_t>(ranks), lines, rows);
      }
    }
  } catch (const json::exception& error) {
    fail(fmt::format("line {} is malformed: {}", number, error.what()));
  }
  if (!has_summary) {
    fail("the last line is no summary: the program was cut off");
  }
  if (rows.empty()) {
    fail("no step was written");
  }
  bool has_clock = one_host;
  for (std::size_t step = 0; step < rows.size(); ++step) {
    for (const Row& row : rows[step]) {
      if (std::isnan(row.step_ms)) {
        fail(fmt::format("a rank wrote no row for step {}, expected {} rows", step, ranks));
      }
      has_clock = has_clock && std::isfinite(row.end_ms);
    }
  }
  metrics.steps_ms = combine_ranks(rows, has_clock);
  return metrics;
}

}  // namespace ddp::bench
