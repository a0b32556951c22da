#include "bench/run/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/report/statistics.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void fail(const std::string& message) {
  throw Error(ExitCode::kTrainingFailed, "metrics: " + message);
}

/// Numbers that JSON cannot hold are written as null.
double number_or_nan(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !(found->is_number() || found->is_null())) {
    fail(std::string("expected a number \"") + key + "\"");
  }
  return found->is_null() ? kNan : found->get<double>();
}

std::int64_t integer(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) {
    fail(std::string("expected an integer \"") + key + "\"");
  }
  return found->get<std::int64_t>();
}

std::optional<double> optional_number(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) {
    return std::nullopt;
  }
  return found->get<double>();
}

std::vector<double> numbers(const json& object, const char* key) {
  std::vector<double> result;
  const auto found = object.find(key);
  if (found != object.end() && found->is_array()) {
    for (const json& element : *found) {
      if (element.is_number()) {
        result.push_back(element.get<double>());
      }
    }
  }
  return result;
}

std::string text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

struct Row {
  std::int64_t rank = 0;
  std::size_t index = 0;
  Step step;
};

Row read_row(const json& line) {
  Row row;
  row.rank = integer(line, "rank");
  const std::int64_t index = integer(line, "step");
  constexpr std::int64_t kMaxSteps = 100'000'000;  // a number beyond is damage, not a long run
  if (row.rank < 0 || index < 0 || index > kMaxSteps) {
    fail("rank " + std::to_string(row.rank) + ", step " + std::to_string(index) + " cannot be");
  }
  row.index = static_cast<std::size_t>(index);
  row.step.step_ms = number_or_nan(line, "step_ms");
  if (!std::isfinite(row.step.step_ms) || row.step.step_ms <= 0) {
    fail("step " + std::to_string(row.index) + " of rank " + std::to_string(row.rank) +
         " has no step time");
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const std::string key = std::string(kPhaseNames[phase]) + "_ms";
    row.step.phase_ms[phase] = number_or_nan(line, key.c_str());
  }
  return row;
}

void read_summary(const json& summary, StageMetrics& metrics) {
  metrics.warmup_steps = integer(summary, "warmup_steps");
  metrics.epochs = integer(summary, "epochs");
  metrics.global_batch = integer(summary, "global_batch");
  metrics.moved = number_or_nan(summary, "moved");
  metrics.backend = text(summary, "backend");
  metrics.device = text(summary, "device");
  metrics.all_reduce_bytes = numbers(summary, "all_reduce_bytes");
  metrics.bytes_per_step = optional_number(summary, "bytes_per_step");
  metrics.peak_rss_mib = numbers(summary, "peak_rss_mib");
  metrics.startup_ms = numbers(summary, "startup_ms");
  metrics.cpu_time_ms = numbers(summary, "cpu_time_ms");
  metrics.timed_wall_ms = numbers(summary, "timed_wall_ms");
  metrics.first_step_unix_ms = optional_number(summary, "first_step_unix_ms");
}

}  // namespace

std::vector<Step> StageMetrics::timed_steps() const {
  const auto skipped = static_cast<std::size_t>(std::max<std::int64_t>(warmup_steps, 0));
  if (skipped >= steps.size()) {
    return {};
  }
  return {steps.begin() + static_cast<std::ptrdiff_t>(skipped), steps.end()};
}

std::optional<double> StageMetrics::cpu_utilisation() const {
  const auto count = static_cast<std::size_t>(std::max(ranks, 0));
  if (count == 0 || cpu_time_ms.size() != count || timed_wall_ms.size() != count) {
    return std::nullopt;
  }
  const double cpu_ms = std::accumulate(cpu_time_ms.begin(), cpu_time_ms.end(), 0.0);
  const double wall_ms = std::accumulate(timed_wall_ms.begin(), timed_wall_ms.end(), 0.0);
  const double utilisation = cpu_ms / wall_ms;
  return std::isfinite(utilisation) ? std::optional<double>(utilisation) : std::nullopt;
}

std::optional<SlowestRank> find_slowest_rank(const StageMetrics& metrics) {
  const auto first = static_cast<std::size_t>(std::max<std::int64_t>(metrics.warmup_steps, 0));
  const std::size_t ranks = metrics.busy_ms_of_rank.size();
  if (ranks < 2 || first >= metrics.steps.size()) {
    return std::nullopt;
  }
  std::vector<std::size_t> times_slowest(ranks);
  for (std::size_t step = first; step < metrics.steps.size(); ++step) {
    std::size_t slowest = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const double busy_ms = metrics.busy_ms_of_rank[rank][step];
      if (!std::isfinite(busy_ms)) {
        return std::nullopt;
      }
      slowest = busy_ms > metrics.busy_ms_of_rank[slowest][step] ? rank : slowest;
    }
    ++times_slowest[slowest];
  }
  const auto most = std::max_element(times_slowest.begin(), times_slowest.end());
  const auto slowest = static_cast<std::size_t>(most - times_slowest.begin());
  std::vector<double> own;
  std::vector<double> others;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<double>& busy_ms = metrics.busy_ms_of_rank[rank];
    std::vector<double>& group = rank == slowest ? own : others;
    group.insert(group.end(), busy_ms.begin() + static_cast<std::ptrdiff_t>(first), busy_ms.end());
  }
  const std::optional<double> own_ms = median(own);
  const std::optional<double> others_ms = median(others);
  if (!own_ms || !others_ms || !(*others_ms > 0)) {
    return std::nullopt;
  }
  return SlowestRank{
      .rank = static_cast<int>(slowest),
      .share_of_steps =
          static_cast<double>(*most) / static_cast<double>(metrics.steps.size() - first),
      .median_excess = *own_ms / *others_ms - 1,
  };
}

StageMetrics read_metrics(const std::string& path, int expected_ranks) {
  std::ifstream file(path);
  if (!file) {
    fail("the program wrote none");
  }
  StageMetrics metrics;
  metrics.ranks = expected_ranks;
  metrics.busy_ms_of_rank.resize(static_cast<std::size_t>(expected_ranks));
  std::vector<int> rows_of_step;  // how many ranks have written this step
  std::vector<std::vector<bool>> written(metrics.busy_ms_of_rank.size());  // [rank][step]
  bool has_summary = false;
  std::string line;
  for (int line_number = 1; std::getline(file, line); ++line_number) {
    if (has_summary) {
      fail("line " + std::to_string(line_number) + " follows the summary");
    }
    const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) {
      fail("line " + std::to_string(line_number) + " is no JSON object");
    }
    if (const auto summary = parsed.find("summary"); summary != parsed.end()) {
      read_summary(*summary, metrics);
      has_summary = true;
      continue;
    }
    const Row row = read_row(parsed);
    if (row.rank >= expected_ranks) {
      fail("rank " + std::to_string(row.rank) + " wrote, expected ranks below " +
           std::to_string(expected_ranks));
    }
    if (row.index >= metrics.steps.size()) {
      metrics.steps.resize(row.index + 1);
      rows_of_step.resize(row.index + 1);
    }
    const auto rank = static_cast<std::size_t>(row.rank);
    written[rank].resize(metrics.steps.size());
    if (written[rank][row.index]) {
      fail("step " + std::to_string(row.index) + " of rank " + std::to_string(row.rank) +
           " was written twice");
    }
    written[rank][row.index] = true;
    ++rows_of_step[row.index];
    std::vector<double>& busy_ms = metrics.busy_ms_of_rank[rank];
    busy_ms.resize(metrics.steps.size(), kNan);
    busy_ms[row.index] = row.step.step_ms - row.step.phase_ms[kExposedComm];
    if (row.step.step_ms > metrics.steps[row.index].step_ms) {
      metrics.steps[row.index] = row.step;
    }
  }
  if (!has_summary) {
    fail("the last line is no summary: the program was cut off");
  }
  for (std::size_t index = 0; index < rows_of_step.size(); ++index) {
    if (rows_of_step[index] != expected_ranks) {
      fail("step " + std::to_string(index) + " was written by " +
           std::to_string(rows_of_step[index]) + " ranks, expected " +
           std::to_string(expected_ranks));
    }
  }
  if (metrics.steps.empty()) {
    fail("no step was written");
  }
  return metrics;
}

}  // namespace ddp::bench
