#include "bench/run/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "bench/run/parity.hpp"

namespace ddp::bench {
namespace {

constexpr std::int64_t kMinSteps = 40;
constexpr std::int64_t kMaxSteps = 4000;
constexpr double kMinMeasuredSeconds = 0.1;  // of one run, start-up not counted
constexpr double kMaxMeasuredSeconds = 1.0;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

double expected_seconds(const Result& result) {
  const auto steps = static_cast<double>(result.length.epochs * result.steps_per_epoch);
  return result.overhead_s + steps * result.parity_step_ms / 1e3;
}

/// @return an error, or the empty string and `repetition` filled
std::string summarise(const StageRun& run, Repetition& repetition) {
  if (!run.error.empty()) {
    return run.error;
  }
  repetition.steps = run.metrics.timed_steps();
  if (!std::isfinite(run.metrics.moved)) {
    return "moved is not a number";
  }
  if (repetition.steps.empty()) {
    return "all of its " + std::to_string(run.metrics.steps.size()) + " steps are warm-up";
  }
  std::vector<double> step_ms;
  step_ms.reserve(repetition.steps.size());
  for (const Step& step : repetition.steps) {
    step_ms.push_back(step.step_ms);
  }
  repetition.median_ms = median(step_ms).value_or(0);
  const std::vector<double>& peak_rss_mib = run.metrics.peak_rss_mib;
  repetition.peak_rss_mib = largest_or_zero(peak_rss_mib);
  const bool all_told = peak_rss_mib.size() == static_cast<std::size_t>(run.metrics.ranks);
  repetition.job_peak_rss_mib =
      all_told ? std::accumulate(peak_rss_mib.begin(), peak_rss_mib.end(), 0.0) : 0;
  repetition.startup_ms = run.startup_ms;
  repetition.cpu_utilisation = run.metrics.cpu_utilisation();
  repetition.slowest_rank = find_slowest_rank(run.metrics);
  repetition.gpu = run.gpu;
  return "";
}

/// @return false if the run was interrupted
bool run_once(Result& result, StageRunner& runner, Progress& progress) {
  const Configuration& configuration = result.configuration;
  progress.start_run(configuration.name(), expected_seconds(result));
  const StageRun run = runner.run(configuration, configuration.global_batch, result.length);
  progress.finish_run(run.wall_s);
  if (run.interrupted) {
    return false;
  }
  Repetition repetition;
  result.error = summarise(run, repetition);
  if (!result.error.empty()) {
    progress.note(configuration.name() + ": " + result.error);
    return true;
  }
  result.steps = std::min(result.steps, static_cast<std::int64_t>(repetition.steps.size()));
  result.repetitions.back() = std::move(repetition);
  return true;
}

/// How fast it is without communication is a fact about the original.
void hand_over_runs_without_communication(Report& report) {
  for (const Result& without : report.results) {
    if (without.configuration.role != Role::kNoCommunication || !without.has_speed()) {
      continue;
    }
    for (Result& result : report.results) {
      // Whoever started the ranks: torchrun's runs have none of their own.
      Configuration same = without.configuration;
      same.launcher = result.configuration.launcher;
      const bool own =
          result.configuration.original_name() == without.configuration.original_name();
      const bool row = result.configuration.role != Role::kNoCommunication;
      if (row && (own || (!result.no_comm_step_ms &&
                          same.original_name() == result.configuration.original_name()))) {
        result.no_comm_step_ms = without.step_ms().median;
      }
    }
  }
}

}  // namespace

RunLength planned_length(const Configuration& configuration) {
  return {
      .epochs = kUnknownEpochs,
      .dataset_size = dataset_size_for(configuration.workload, configuration.global_batch),
  };
}

void choose_lengths(const Settings& settings, double seconds_used, Report& report) {
  double overhead_s = 0;
  int runs = 0;
  for (const Result& result : report.results) {
    if (result.error.empty()) {
      overhead_s += settings.repetitions * result.overhead_s;
      runs += settings.repetitions;
    }
  }
  const double measured_s =
      std::clamp((settings.budget_s - seconds_used - overhead_s) / std::max(runs, 1),
                 kMinMeasuredSeconds, kMaxMeasuredSeconds);
  for (Result& result : report.results) {
    if (!result.error.empty()) {
      continue;
    }
    const double wished = measured_s / std::max(1e-6, result.parity_step_ms / 1e3);
    result.steps = settings.steps.value_or(static_cast<std::int64_t>(
        std::clamp(wished, static_cast<double>(kMinSteps), static_cast<double>(kMaxSteps))));
    result.length.epochs = divide_up(result.steps + result.warmup_steps, result.steps_per_epoch);
    result.steps = std::numeric_limits<std::int64_t>::max();  // from here on: what the runs had
  }
}

void measure(const Settings& settings, StageRunner& runner, Progress& progress,
             Interrupts& interrupts, Report& report) {
  std::vector<std::size_t> order;
  std::vector<double> expected_s;
  for (std::size_t i = 0; i < report.results.size(); ++i) {
    const Result& result = report.results[i];
    if (result.error.empty()) {
      order.push_back(i);
      expected_s.insert(expected_s.end(), static_cast<std::size_t>(settings.repetitions),
                        expected_seconds(result));
    }
  }
  progress.begin("timed", expected_s, 0);
  std::mt19937_64 generator(settings.seed);
  for (int block = 0; block < settings.repetitions && !report.partial; ++block) {
    std::shuffle(order.begin(), order.end(), generator);
    for (const std::size_t i : order) {
      Result& result = report.results[i];
      result.repetitions.emplace_back(std::nullopt);
      if (!result.error.empty()) {
        continue;
      }
      report.partial =
          report.partial || interrupts.requested() || !run_once(result, runner, progress);
    }
  }
  progress.end();
  for (Result& result : report.results) {
    if (result.error.empty() && !result.has_speed()) {
      result.error = kInterrupted;
    }
  }
  hand_over_runs_without_communication(report);
}

}  // namespace ddp::bench
