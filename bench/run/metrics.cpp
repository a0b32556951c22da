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
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const FieldReader& reader() {
  static const FieldReader result("metrics", "what --metrics writes", ExitCode::kTrainingFailed);
  return result;
}

constexpr double kWarmupMs = 50;

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
  std::optional<double> end_ms;  // peers may not tell
  reader().read_member(line, "", "end_ms", end_ms);
  row.step.end_ms = end_ms.value_or(kNan);
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    if (phase != kImbalance) {  // which only the ranks together tell
      reader().read_member(line, "", std::string(kPhaseNames[phase]) + "_ms",
                           row.step.phase_ms[phase]);
    }
  }
  if (row.rank >= ranks) {
    reader().fail(fmt::format("rank {} wrote, expected ranks below {}", row.rank, ranks));
  }
  return row;
}

/// What clocks resolve; a document is half as long without digits that mean nothing.
double to_nanosecond(double ms) {
  return std::round(ms * 1e6) / 1e6;
}

using StepOfRanks = std::vector<std::optional<Step>>;  // [rank]; none: that rank wrote no row

/// See Note [The job's step]. @param ended_ms when the step before ended; not a number: not known
Step job_step(const StepOfRanks& ranks, double ended_ms) {
  const auto count = static_cast<double>(ranks.size());
  Step job{.step_ms = 0, .end_ms = -kInfinity, .phase_ms = {}};
  double begin_ms = kInfinity;
  double least_wait_ms = kInfinity;
  for (const std::optional<Step>& rank : ranks) {
    job.step_ms += rank->step_ms / count;
    for (std::size_t phase = 0; phase < kPhases; ++phase) {
      job.phase_ms[phase] += rank->phase_ms[phase] / count;
    }
    least_wait_ms = std::min(least_wait_ms, rank->phase_ms[kExposedComm]);
    begin_ms = std::min(begin_ms, rank->end_ms - rank->step_ms);
    job.end_ms = std::max(job.end_ms, rank->end_ms);
  }
  const double mean_wait_ms = job.phase_ms[kExposedComm];
  const bool waits_known = std::isfinite(mean_wait_ms);
  job.phase_ms[kExposedComm] = waits_known ? least_wait_ms : kNan;
  job.phase_ms[kImbalance] = waits_known ? std::max(0.0, mean_wait_ms - least_wait_ms) : kNan;
  if (std::isnan(ended_ms)) {
    job.end_ms = kNan;
  } else {
    job.step_ms = job.end_ms - std::max(begin_ms, ended_ms);
  }
  job.step_ms = to_nanosecond(job.step_ms);
  return job;
}

/// @param has_clock every row tells when it ended, by one clock
/// @throws Error if a rank's steps do not end one after the other
void combine_ranks(const std::vector<StepOfRanks>& rows, bool has_clock, StageMetrics& metrics) {
  double ended_ms = has_clock ? -kInfinity : kNan;
  for (std::size_t step = 0; step < rows.size(); ++step) {
    for (std::size_t rank = 0; rank < rows[step].size(); ++rank) {
      const Step& own = *rows[step][rank];
      if (has_clock && step > 0 && own.end_ms <= rows[step - 1][rank]->end_ms) {
        reader().fail(
            fmt::format("step {} of rank {} did not end after the one before", step, rank));
      }
      metrics.step_ms_of_rank[rank].push_back(to_nanosecond(own.step_ms));
      metrics.busy_ms_of_rank[rank].push_back(own.step_ms - own.phase_ms[kExposedComm]);
    }
    metrics.steps.push_back(job_step(rows[step], ended_ms));
    ended_ms = has_clock ? metrics.steps.back().end_ms : kNan;
  }
}

/// Besides what the stage says, at most as many steps as can be spared.
std::int64_t count_warmup_steps(const StageMetrics& metrics, std::int64_t timed_steps) {
  const std::int64_t steps = std::ssize(metrics.steps);
  const std::int64_t most = timed_steps > 0 ? steps - timed_steps : steps / 2;
  std::int64_t warmup_steps = 0;
  for (double ms = 0; warmup_steps < most && ms < kWarmupMs; ++warmup_steps) {
    ms += metrics.steps[static_cast<std::size_t>(warmup_steps)].step_ms;
  }
  return std::max(warmup_steps, metrics.warmup_steps);
}

}  // namespace

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::vector<double> step_times_ms(const std::vector<Step>& steps) {
  std::vector<double> times_ms;
  times_ms.reserve(steps.size());
  for (const Step& step : steps) {
    times_ms.push_back(step.step_ms);
  }
  return times_ms;
}

std::optional<double> wall_samples_per_second(std::int64_t global_batch,
                                              const std::vector<Step>& steps) {
  const double samples = static_cast<double>(global_batch) * static_cast<double>(steps.size());
  const double wall_ms = sum(step_times_ms(steps));
  return wall_ms > 0 ? std::optional(samples / (wall_ms / 1e3)) : std::nullopt;
}

std::size_t StageMetrics::first_timed_step() const {
  return static_cast<std::size_t>(std::clamp<std::int64_t>(warmup_steps, 0, std::ssize(steps)));
}

std::vector<Step> StageMetrics::timed_steps() const {
  return {steps.begin() + static_cast<std::ptrdiff_t>(first_timed_step()), steps.end()};
}

std::optional<Interval> StageMetrics::timed_unix_ms() const {
  const std::size_t first = first_timed_step();
  if (!first_step_unix_ms || first == 0 || first >= steps.size()) {
    return std::nullopt;
  }
  const double offset_ms = *first_step_unix_ms - steps.front().end_ms;
  const Interval times{steps[first - 1].end_ms + offset_ms, steps.back().end_ms + offset_ms};
  return times.low < times.high ? std::optional(times) : std::nullopt;
}

std::optional<double> StageMetrics::cpu_utilisation() const {
  const auto count = static_cast<std::size_t>(std::max(ranks, 0));
  if (count == 0 || cpu_time_ms.size() != count || timed_wall_ms.size() != count) {
    return std::nullopt;
  }
  const double utilisation = sum(cpu_time_ms) / sum(timed_wall_ms);
  return std::isfinite(utilisation) ? std::optional<double>(utilisation) : std::nullopt;
}

std::vector<SlowestRank> compare_ranks(const StageMetrics& metrics) {
  const std::size_t first = metrics.first_timed_step();
  const std::size_t ranks = metrics.busy_ms_of_rank.size();
  if (ranks < 2 || first >= metrics.steps.size()) {
    return {};
  }
  std::vector<double> times_slowest(ranks);
  for (std::size_t step = first; step < metrics.steps.size(); ++step) {
    std::size_t slowest = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (metrics.busy_ms_of_rank[rank][step] > metrics.busy_ms_of_rank[slowest][step]) {
        slowest = rank;
      }
    }
    ++times_slowest[slowest];
  }
  std::vector<double> medians_ms;
  for (const std::vector<double>& busy_ms : metrics.busy_ms_of_rank) {
    const auto median_ms =
        median({busy_ms.begin() + static_cast<std::ptrdiff_t>(first), busy_ms.end()});
    medians_ms.push_back(median_ms.value_or(kNan));  // one of its waits is not known
  }
  std::vector<SlowestRank> compared;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<double> others_ms = medians_ms;
    others_ms.erase(others_ms.begin() + static_cast<std::ptrdiff_t>(rank));
    const double excess = medians_ms[rank] / median(others_ms).value_or(kNan) - 1;
    if (!std::isfinite(excess)) {
      return {};
    }
    compared.push_back({
        .rank = static_cast<int>(rank),
        .share_of_steps = times_slowest[rank] / static_cast<double>(metrics.steps.size() - first),
        .median_excess = excess,
    });
  }
  return compared;
}

StageMetrics read_metrics(const std::string& path, int expected_ranks, bool one_host,
                          std::int64_t timed_steps) {
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
  metrics.step_ms_of_rank.resize(ranks);
  std::vector<StepOfRanks> rows;  // [step]
  bool has_clock = one_host;
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
    if (row.index >= rows.size()) {
      rows.resize(row.index + 1, StepOfRanks(ranks));
    }
    if (rows[row.index][row.rank]) {
      reader().fail(fmt::format("step {} of rank {} was written twice", row.index, row.rank));
    }
    rows[row.index][row.rank] = row.step;
    has_clock = has_clock && std::isfinite(row.step.end_ms);
  }
  if (!has_summary) {
    reader().fail("the last line is no summary: the program was cut off");
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const auto writers = std::ranges::count_if(rows[index], &std::optional<Step>::has_value);
    if (writers != expected_ranks) {
      reader().fail(fmt::format("step {} was written by {} ranks, expected {}", index, writers,
                                expected_ranks));
    }
  }
  if (rows.empty()) {
    reader().fail("no step was written");
  }
  combine_ranks(rows, has_clock, metrics);
  metrics.warmup_steps = count_warmup_steps(metrics, timed_steps);
  return metrics;
}

}  // namespace ddp::bench
