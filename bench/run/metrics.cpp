#include "bench/run/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/report/field_json.hpp"
#include "bench/report/statistics.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const FieldReader& reader() {
  static const FieldReader result("metrics", "what --metrics writes", ExitCode::kTrainingFailed);
  return result;
}

struct Row {
  std::size_t rank = 0;
  std::size_t index = 0;
  Step step;
};

Row read_row(const nlohmann::ordered_json& line) {
  constexpr std::size_t kMostRows = 100'000'000;  // a number beyond is damage, not a long run
  Row row;
  reader().read_member(line, "", "rank", row.rank);
  reader().read_member(line, "", "step", row.index);
  reader().expect(row.index <= kMostRows, line["step"], "/step", "a number of steps");
  reader().read_member(line, "", "step_ms", row.step.step_ms);
  if (!std::isfinite(row.step.step_ms) || row.step.step_ms <= 0) {
    reader().fail("step " + std::to_string(row.index) + " of rank " + std::to_string(row.rank) +
                  " has no step time");
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    reader().read_member(line, "", std::string(kPhaseNames[phase]) + "_ms",
                         row.step.phase_ms[phase]);
  }
  return row;
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
  const auto fail = [](const std::string& message) { reader().fail(message); };
  std::ifstream file(path);
  if (!file) {
    fail("the program wrote none");
  }
  StageMetrics metrics;
  metrics.ranks = expected_ranks;
  metrics.busy_ms_of_rank.resize(static_cast<std::size_t>(expected_ranks));
  std::vector<std::vector<bool>> written(metrics.busy_ms_of_rank.size());  // [rank][step]
  bool has_summary = false;
  std::string line;
  for (int line_number = 1; std::getline(file, line); ++line_number) {
    if (has_summary) {
      fail("line " + std::to_string(line_number) + " follows the summary");
    }
    const auto parsed = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) {
      fail("line " + std::to_string(line_number) + " is no JSON object");
    }
    if (const auto summary = parsed.find("summary"); summary != parsed.end()) {
      reader().read(*summary, "/summary", metrics);
      has_summary = true;
      continue;
    }
    const Row row = read_row(parsed);
    if (row.rank >= written.size()) {
      fail("rank " + std::to_string(row.rank) + " wrote, expected ranks below " +
           std::to_string(expected_ranks));
    }
    if (row.index >= metrics.steps.size()) {
      metrics.steps.resize(row.index + 1);
    }
    written[row.rank].resize(metrics.steps.size());
    if (written[row.rank][row.index]) {
      fail("step " + std::to_string(row.index) + " of rank " + std::to_string(row.rank) +
           " was written twice");
    }
    written[row.rank][row.index] = true;
    std::vector<double>& busy_ms = metrics.busy_ms_of_rank[row.rank];
    busy_ms.resize(metrics.steps.size(), kNan);
    busy_ms[row.index] = row.step.step_ms - row.step.phase_ms[kExposedComm];
    if (row.step.step_ms > metrics.steps[row.index].step_ms) {
      metrics.steps[row.index] = row.step;
    }
  }
  if (!has_summary) {
    fail("the last line is no summary: the program was cut off");
  }
  for (std::size_t index = 0; index < metrics.steps.size(); ++index) {
    const auto ranks = std::count_if(written.begin(), written.end(), [&](const auto& steps) {
      return index < steps.size() && steps[index];
    });
    if (ranks != expected_ranks) {
      fail("step " + std::to_string(index) + " was written by " + std::to_string(ranks) +
           " ranks, expected " + std::to_string(expected_ranks));
    }
  }
  if (metrics.steps.empty()) {
    fail("no step was written");
  }
  return metrics;
}

}  // namespace ddp::bench
