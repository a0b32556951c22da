#include "bench/run/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
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

/// @param lines of the file: a step beyond is damage, and must not cost memory
Row read_row(const nlohmann::ordered_json& line, std::size_t ranks, std::size_t lines) {
  Row row;
  reader().read_member(line, "", "rank", row.rank);
  reader().read_member(line, "", "step", row.index);
  reader().expect(row.index < lines, line["step"], "/step",
                  fmt::format("less than the {} lines", lines));
  reader().read_member(line, "", "step_ms", row.step.step_ms);
  if (!std::isfinite(row.step.step_ms) || row.step.step_ms <= 0) {
    reader().fail(fmt::format("step {} of rank {} has no step time", row.index, row.rank));
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    if (phase == kImbalance) {
      continue;
    }
    reader().read_member(line, "", std::string(kPhaseNames[phase]) + "_ms",
                         row.step.phase_ms[phase]);
  }
  if (row.rank >= ranks) {
    reader().fail(fmt::format("rank {} wrote, expected ranks below {}", row.rank, ranks));
  }
  return row;
}

}  // namespace

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

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
  const double utilisation = sum(cpu_time_ms) / sum(timed_wall_ms);
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
      if (metrics.busy_ms_of_rank[rank][step] > metrics.busy_ms_of_rank[slowest][step]) {
        slowest = rank;
      }
    }
    ++times_slowest[slowest];
  }
  const auto most = std::ranges::max_element(times_slowest);
  const auto slowest = static_cast<std::size_t>(most - times_slowest.begin());
  std::vector<double> own;
  std::vector<double> others;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<double>& busy_ms = metrics.busy_ms_of_rank[rank];
    std::vector<double>& group = rank == slowest ? own : others;
    group.insert(group.end(), busy_ms.begin() + static_cast<std::ptrdiff_t>(first), busy_ms.end());
  }
  const std::optional<double> own_ms = median(own);  // nothing if one is not a number
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
    reader().fail("the program wrote none");
  }
  const auto lines =
      static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  file.clear();
  file.seekg(0);
  const auto ranks = static_cast<std::size_t>(expected_ranks);
  StageMetrics metrics;
  metrics.ranks = expected_ranks;
  metrics.busy_ms_of_rank.resize(ranks);
  std::vector<std::vector<bool>> written;  // [step][rank]
  bool has_summary = false;
  std::string line;
  for (int line_number = 1; std::getline(file, line); ++line_number) {
    if (has_summary) {
      reader().fail(fmt::format("line {} follows the summary", line_number));
    }
    const auto parsed = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) {
      reader().fail(fmt::format("line {} is no JSON object", line_number));
    }
    if (const auto summary = parsed.find("summary"); summary != parsed.end()) {
      reader().read(*summary, "/summary", metrics);
      has_summary = true;
      continue;
    }
    const Row row = read_row(parsed, ranks, lines);
    if (row.index >= metrics.steps.size()) {
      metrics.steps.resize(row.index + 1);
      written.resize(row.index + 1, std::vector<bool>(ranks));
    }
    if (written[row.index][row.rank]) {
      reader().fail(fmt::format("step {} of rank {} was written twice", row.index, row.rank));
    }
    written[row.index][row.rank] = true;
    std::vector<double>& busy_ms = metrics.busy_ms_of_rank[row.rank];
    busy_ms.resize(metrics.steps.size(), kNan);
    busy_ms[row.index] = row.step.step_ms - row.step.phase_ms[kExposedComm];
    if (row.step.step_ms > metrics.steps[row.index].step_ms) {
      metrics.steps[row.index] = row.step;
    }
  }
  if (!has_summary) {
    reader().fail("the last line is no summary: the program was cut off");
  }
  for (std::size_t index = 0; index < written.size(); ++index) {
    const auto writers = std::ranges::count(written[index], true);
    if (writers != expected_ranks) {
      reader().fail(fmt::format("step {} was written by {} ranks, expected {}", index, writers,
                                expected_ranks));
    }
  }
  if (metrics.steps.empty()) {
    reader().fail("no step was written");
  }
  return metrics;
}

}  // namespace ddp::bench
