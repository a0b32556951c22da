#include "bench/run/measurement.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "bench/report/statistics.hpp"
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

/// Why nothing can be said of a run; empty if something can.
std::string error_of(const StageRun& run) {
  if (!run.error.empty()) {
    return run.error;
  }
  if (!std::isfinite(run.metrics.moved)) {
    return "moved is not a number";
  }
  return run.metrics.timed_steps().empty()
             ? "all of its " + std::to_string(run.metrics.steps.size()) + " steps are warm-up"
             : "";
}

/// @return false if the run was interrupted
bool run_once(Result& result, StageRunner& runner, Progress& progress) {
  const Configuration& configuration = result.configuration;
  progress.start_run(configuration.name(), expected_seconds(result));
  StageRun run = runner.run(configuration, configuration.global_batch, result.length);
  progress.finish_run(run.wall_s);
  if (run.interrupted) {
    return false;
  }
  result.error = error_of(run);
  if (!result.error.empty()) {
    progress.note(configuration.name() + ": " + result.error);
    return true;
  }
  result.repetitions.back() = std::move(run);
  return true;
}

/// How fast it is without communication is a fact about the original.
void hand_over_runs_without_communication(std::vector<Result>& results) {
  for (const Result& without : results) {
    if (without.configuration.role != Role::kNoCommunication || !without.was_measured()) {
      continue;
    }
    for (Result& result : results) {
      // Whoever started the ranks: torchrun's runs have none of their own.
      Configuration same = without.configuration;
      same.launcher = result.configuration.launcher;
      const bool own =
          result.configuration.original_name() == without.configuration.original_name();
      const bool row = result.configuration.role != Role::kNoCommunication;
      if (row && (own || (!result.no_comm_step_ms &&
                          same.original_name() == result.configuration.original_name()))) {
        result.no_comm_step_ms = median(step_times_ms(without.timed_steps()));
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

void choose_lengths(const Settings& settings, double seconds_used, Measurements& measurements) {
  double overhead_s = 0;
  int runs = 0;
  for (const Result& result : measurements.results) {
    if (result.error.empty()) {
      overhead_s += settings.repetitions * result.overhead_s;
      runs += settings.repetitions;
    }
  }
  const double measured_s =
      std::clamp((settings.budget_s - seconds_used - overhead_s) / std::max(runs, 1),
                 kMinMeasuredSeconds, kMaxMeasuredSeconds);
  for (Result& result : measurements.results) {
    if (!result.error.empty()) {
      continue;
    }
    const double wished = measured_s / std::max(1e-6, result.parity_step_ms / 1e3);
    const std::int64_t steps = settings.steps.value_or(static_cast<std::int64_t>(
        std::clamp(wished, static_cast<double>(kMinSteps), static_cast<double>(kMaxSteps))));
    result.length.epochs = divide_up(steps + result.warmup_steps, result.steps_per_epoch);
  }
}

void measure(const Settings& settings, StageRunner& runner, Progress& progress,
             Interrupts& interrupts, Measurements& measurements) {
  std::vector<std::size_t> order;
  std::vector<double> expected_s;
  for (std::size_t i = 0; i < measurements.results.size(); ++i) {
    const Result& result = measurements.results[i];
    if (result.error.empty()) {
      order.push_back(i);
      expected_s.insert(expected_s.end(), static_cast<std::size_t>(settings.repetitions),
                        expected_seconds(result));
    }
  }
  progress.begin("timed", expected_s, 0);
  std::mt19937_64 generator(settings.seed);
  for (int block = 0; block < settings.repetitions && !measurements.partial; ++block) {
    std::shuffle(order.begin(), order.end(), generator);
    for (const std::size_t i : order) {
      Result& result = measurements.results[i];
      result.repetitions.emplace_back(std::nullopt);
      if (!result.error.empty()) {
        continue;
      }
      measurements.partial =
          measurements.partial || interrupts.requested() || !run_once(result, runner, progress);
    }
  }
  progress.end();
  for (Result& result : measurements.results) {
    if (result.error.empty() && !result.was_measured()) {
      result.error = kInterrupted;
    }
  }
  hand_over_runs_without_communication(measurements.results);
}

}  // namespace ddp::bench
