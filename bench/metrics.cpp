#include "bench/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostSamples = 1e15;

/// Rows of all ranks for a step, added up; NaN for what a row does not say. Times are in
/// milliseconds since the first row of the file ended, so that they are exact.
struct JobStep {
  std::set<int> ranks;
  double sum_ms = 0;
  double begin_ms = kInfinity;
  double first_end_ms = kInfinity;
  double end_ms = -kInfinity;
  double samples = 0;
  bool has_loss = true;  ///< false: a row has none
  double loss_sum = 0;
  double weighted_loss_sum = 0;  ///< by the samples; a rank without samples has no loss

  /// Mean over the samples, or over the ranks if a row does not say its samples.
  double loss() const {
    return samples > 0 ? weighted_loss_sum / samples : loss_sum / static_cast<double>(ranks.size());
  }
};
using JobSteps = std::map<std::int64_t, JobStep>;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ExitCode::kTrainingFailed, "metrics: " + what);
}

/// A number; NaN for null, and for a field that is not there.
double number_in(const json& line, const char* name) {
  const auto field = line.find(name);
  return field == line.end() || field->is_null() ? kNan : field->get<double>();
}

void read_summary(const json& summary, Metrics& metrics) {
  metrics.has_summary = true;
  metrics.global_batch = summary.at("global_batch").get<std::int64_t>();
  summary.at("moved");  // null if a weight is NaN
  metrics.moved = number_in(summary, "moved");
  metrics.peak_rss_mib = 0;
  for (const json& of_rank : summary.at("peak_rss_mib")) {
    *metrics.peak_rss_mib += of_rank.get<double>();
  }
}

void read_row(const json& line, int ranks, Metrics& metrics, std::optional<std::int64_t>& zero_ns,
              JobSteps& steps) {
  const int rank = line.at("rank").get<int>();
  const auto number = line.at("step").get<std::int64_t>();
  const auto step_ms = line.at("step_ms").get<double>();
  const double samples = number_in(line, "samples");
  if (rank < 0 || rank >= ranks) {
    fail(fmt::format("got rank {}, expected 0 to {}", rank, ranks - 1));
  }
  if (!(step_ms > 0 && std::isfinite(step_ms)) || samples < 0 || samples > kMostSamples) {
    fail(fmt::format("got step_ms {} and samples {} in step {}, expected a time and a number",
                     step_ms, samples, number));
  }
  JobStep& step = steps[number];
  if (!step.ranks.insert(rank).second) {
    fail(fmt::format("rank {} wrote step {} twice, expected steps that count on over epochs", rank,
                     number));
  }
  double end_ms = kNan;
  if (line.contains("end_ns") && !line["end_ns"].is_null()) {
    const auto end_ns = line["end_ns"].get<std::int64_t>();
    zero_ns = zero_ns.value_or(end_ns);
    end_ms = static_cast<double>(end_ns - *zero_ns) * 1e-6;
    if (rank == 0 && number == 0) {
      metrics.first_end_ns = end_ns;
    }
  }
  const double loss = number_in(line, "loss");
  step.sum_ms += step_ms;
  step.begin_ms = std::min(step.begin_ms, end_ms - step_ms);
  step.first_end_ms = std::min(step.first_end_ms, end_ms);
  step.end_ms = std::isnan(end_ms) || end_ms > step.end_ms ? end_ms : step.end_ms;
  step.samples += samples;
  step.has_loss = step.has_loss && line.contains("loss");
  step.loss_sum += loss;
  step.weighted_loss_sum += samples == 0 ? 0 : samples * loss;
}

/// @return the steps; fills `metrics` from the lines
JobSteps read_lines(std::ifstream& file, int ranks, Metrics& metrics) {
  JobSteps steps;
  std::optional<std::int64_t> zero_ns;
  int number = 0;
  try {
    for (std::string text; std::getline(file, text);) {
      ++number;
      const json line = json::parse(text);
      metrics.has_summary = line.contains("summary");
      if (metrics.has_summary) {
        read_summary(line["summary"], metrics);
      } else {
        read_row(line, ranks, metrics, zero_ns, steps);
      }
    }
  } catch (const json::exception& error) {
    const std::string text = error.what();  // "[json.exception.parse_error.101] parse error at ..."
    fail(fmt::format("line {} is malformed: {}", number, text.substr(text.find("] ") + 2)));
  }
  return steps;
}

}  // namespace

Metrics read_metrics(const std::string& path, int ranks, double run_ms) {
  std::ifstream file(path);
  if (!file) {
    fail("the program wrote none");
  }
  Metrics metrics;
  const JobSteps steps = read_lines(file, ranks, metrics);
  if (steps.empty()) {
    fail("no step was written");
  }
  std::vector<double> samples;
  double ended_ms = -kInfinity;
  for (const auto& [number, step] : steps) {
    const std::int64_t expected = std::ssize(metrics.steps_ms);
    if (number != expected) {
      fail(fmt::format("got step {}, expected step {}", number, expected));
    }
    if (std::ssize(step.ranks) != ranks) {
      fail(fmt::format("{} of {} ranks wrote step {}, expected all of them", step.ranks.size(),
                       ranks, number));
    }
    // See Note [The job's step].
    const bool one_clock = step.end_ms - step.first_end_ms <= run_ms;
    const double step_ms =
        one_clock ? step.end_ms - std::max(step.begin_ms, ended_ms) : step.sum_ms / ranks;
    if (!(step_ms > 0)) {
      fail(fmt::format("step {} did not end after the one before", number));
    }
    metrics.steps_ms.push_back(std::round(step_ms * 1e6) / 1e6);  // whole nanoseconds
    ended_ms = step.end_ms;
    samples.push_back(step.samples);
    if (step.has_loss) {
      metrics.losses.push_back(step.loss());
    }
  }
  if (metrics.losses.size() != steps.size()) {
    metrics.losses.clear();
  }
  const std::optional<double> batch = median(samples);
  if (!metrics.has_summary && batch.value_or(0) >= 1) {
    metrics.global_batch = std::llround(*batch);
  }
  return metrics;
}

}  // namespace ddp::bench
