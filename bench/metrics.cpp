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
  double end_ms = -kInfinity;  ///< NaN if a row has none
  double samples = 0;  ///< NaN if a row has none
  double loss_sum = 0;  ///< over samples, or over ranks; NaN for a loss that is no number
  int losses = 0;
};
using JobSteps = std::map<std::int64_t, JobStep>;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ExitCode::kTrainingFailed, "metrics: " + what);
}

/// A number; NaN for null, and for a field that is not there.
double number_in(const json& line, const char* name) {
  const auto field = line.find(name);
  return field == line.end() || field->is_null() ? std::numeric_limits<double>::quiet_NaN()
                                                 : field->get<double>();
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

void read_row(const json& line, Metrics& metrics, std::optional<std::int64_t>& zero_ns,
              JobStep& step) {
  const double step_ms = line.at("step_ms").get<double>();
  double end_ms = std::numeric_limits<double>::quiet_NaN();
  if (line.contains("end_ns")) {
    const auto end_ns = line["end_ns"].get<std::int64_t>();
    zero_ns = zero_ns.value_or(end_ns);
    end_ms = static_cast<double>(end_ns - *zero_ns) * 1e-6;
    if (line.at("rank") == 0 && line.at("step") == 0) {
      metrics.first_end_ns = end_ns;
    }
  }
  ++step.rows;
  step.sum_ms += step_ms;
  step.begin_ms = std::min(step.begin_ms, end_ms - step_ms);
  // Not std::max(), so that a NaN stays.
  step.end_ms = std::isnan(end_ms) || end_ms > step.end_ms ? end_ms : step.end_ms;
  const double samples = number_in(line, "samples");
  step.samples += samples;
  if (line.contains("loss")) {
    ++step.losses;
    step.loss_sum += samples == 0 ? 0 : number_in(line, "loss") * (samples > 0 ? samples : 1);
  }
}

/// @return the steps; fills `metrics` from the lines
JobSteps read_lines(std::ifstream& file, Metrics& metrics) {
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
        read_row(line, metrics, zero_ns, steps[line.at("step").get<std::int64_t>()]);
      }
    }
  } catch (const json::exception& error) {
    fail(fmt::format("line {} is malformed: {}", number, error.what()));
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
  std::vector<double> samples;
  double ended_ms = -kInfinity;
  for (const auto& [number, step] : steps) {
    const std::int64_t expected = std::ssize(metrics.steps_ms);
    if (number != expected || step.rows != ranks) {
      fail(fmt::format("got {} rows for step {}, expected {} for step {}", step.rows, number, ranks,
                       expected));
    }
    // See Note [The job's step].
    const double step_ms = one_host && std::isfinite(step.end_ms)
                               ? step.end_ms - std::max(step.begin_ms, ended_ms)
                               : step.sum_ms / ranks;
    if (!(step_ms > 0)) {
      fail(fmt::format("step {} did not end after the one before", number));
    }
    metrics.steps_ms.push_back(std::round(step_ms * 1e6) / 1e6);  // whole nanoseconds
    ended_ms = step.end_ms;
    samples.push_back(step.samples);
    if (step.losses == ranks) {
      metrics.losses.push_back(step.loss_sum / (step.samples > 0 ? step.samples : ranks));
    }
  }
  if (metrics.losses.size() != steps.size()) {
    metrics.losses.clear();
  }
  if (!metrics.has_summary && all_finite(samples)) {
    metrics.global_batch = std::llround(median(samples).value());
  }
  return metrics;
}

}  // namespace ddp::bench
