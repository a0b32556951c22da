#include "bench/measurement.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "bench/benchmark_json.hpp"
#include "common/exit_codes.hpp"

namespace ddp::bench {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kDatasetSize = 2048;  // the stages' default for synthetic data
constexpr std::int64_t kAssumedTrainSize = 1400;  // of a real dataset, until its stage told
constexpr std::int64_t kParitySteps = 48;
constexpr std::int64_t kMinSteps = 40;
constexpr std::int64_t kMaxSteps = 1000;
constexpr double kMinMeasuredSeconds = 0.1;  // of one run, start-up not counted
constexpr double kMaxMeasuredSeconds = 1.0;
constexpr const char* kInterrupted = "interrupted before it was measured";

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// What a run costs before anything of it has been measured.
double assumed_seconds(const Configuration& configuration) {
  return configuration.launcher == "torchrun" ? 6.0
         : configuration.launcher == "mpirun" ? 1.5
                                              : 1.0;
}

/// Synthetic data of whole batches, so that every step is as large as the next.
std::int64_t dataset_size_for(const Workload& workload, std::int64_t global_batch) {
  const std::int64_t batches = std::max<std::int64_t>(1, kDatasetSize / global_batch);
  return workload.synthetic ? batches * global_batch : 0;
}

RunLength parity_length(const Configuration& configuration) {
  const std::int64_t batch = configuration.parity_batch;
  const std::int64_t size = dataset_size_for(configuration.workload, batch);
  const std::int64_t steps_per_epoch =
      std::max<std::int64_t>(1, (size > 0 ? size : kAssumedTrainSize) / batch);
  return {
      .epochs = std::clamp<std::int64_t>(divide_up(kParitySteps, steps_per_epoch), 2, 50),
      .dataset_size = size,
  };
}

/// Steps that an epoch has at least with `global_batch`, told from a run with another batch.
std::int64_t steps_per_epoch(const Configuration& configuration, const StageMetrics& parity_run) {
  const std::int64_t synthetic_size =
      dataset_size_for(configuration.workload, configuration.global_batch);
  if (synthetic_size > 0) {
    return synthetic_size / configuration.global_batch;
  }
  const auto steps = static_cast<std::int64_t>(parity_run.steps.size());
  const std::int64_t per_epoch = steps / std::max<std::int64_t>(1, parity_run.epochs);
  // The last batch of an epoch may have held one sample only.
  const std::int64_t least_samples = (per_epoch - 1) * configuration.parity_batch + 1;
  return std::max<std::int64_t>(1, least_samples / configuration.global_batch);
}

std::vector<double> step_times(const std::vector<Step>& steps) {
  std::vector<double> result;
  result.reserve(steps.size());
  for (const Step& step : steps) {
    result.push_back(step.step_ms);
  }
  return result;
}

double largest_or_zero(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

std::string format_number(const std::optional<double>& value) {
  if (!value) {
    return "not a number";
  }
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.7g", *value);
  return buffer;
}

void judge_parity(const StageRun& run, double reference_moved, Result& result) {
  const double moved = run.metrics.moved;
  result.parity.moved = finite(moved);
  result.parity.reference_moved = finite(reference_moved);
  result.parity.ok = parity_holds(moved, reference_moved);
  if (!result.parity.ok) {
    result.error = "parity: moved " + format_number(result.parity.moved) + ", stage 01 moved " +
                   format_number(result.parity.reference_moved);
  }
  const std::vector<Step> timed = run.metrics.timed_steps();
  result.parity_step_ms =
      median(step_times(timed.size() >= kMinSamplesForSpread ? timed : run.metrics.steps))
          .value_or(0);
  const double steps_ms =
      std::accumulate(run.metrics.steps.begin(), run.metrics.steps.end(), 0.0,
                      [](double sum, const Step& step) { return sum + step.step_ms; });
  result.overhead_s = std::max(0.0, run.wall_s - steps_ms / 1e3);
  result.bytes_per_step = run.metrics.bytes_per_step;
  result.length.dataset_size =
      dataset_size_for(result.configuration.workload, result.configuration.global_batch);
  result.steps_per_epoch = steps_per_epoch(result.configuration, run.metrics);
  // A warm-up that took half of a short run may be longer in a longer one.
  const auto steps = static_cast<std::int64_t>(run.metrics.steps.size());
  const bool may_grow = 2 * run.metrics.warmup_steps + 1 >= steps;
  result.warmup_steps = run.metrics.warmup_steps * (may_grow ? 2 : 1);
}

double expected_seconds(const Result& result) {
  const auto steps = static_cast<double>(result.length.epochs * result.steps_per_epoch);
  return result.overhead_s + steps * result.parity_step_ms / 1e3;
}

/// Google Benchmark insists on equal iteration counts over repetitions, failed ones included, so
/// the error has to come from inside the loop.
void fail(benchmark::State& state, const std::string& error) {
  while (state.KeepRunning()) {
    state.SkipWithError(error.c_str());
    break;
  }
}

/// One real run of the stage, as one iteration of a benchmark whose time is its median step.
void run_repetition(benchmark::State& state, Result& result, StageRunner& runner,
                    Progress& progress, Interrupts& interrupts, bool& partial) {
  if (result.error.empty() && interrupts.requested()) {
    partial = true;
  }
  if (!result.error.empty() || partial) {
    fail(state, result.error.empty() ? kInterrupted : result.error);
    return;
  }
  const Configuration& configuration = result.configuration;
  progress.start_run(configuration.name(), expected_seconds(result));
  StageRun run = runner.run(configuration, configuration.global_batch, result.length);
  progress.finish_run(run.wall_s);
  if (run.interrupted) {
    partial = true;
    fail(state, kInterrupted);
    return;
  }
  Repetition repetition;
  repetition.steps = run.metrics.timed_steps();
  if (run.error.empty() && !std::isfinite(run.metrics.moved)) {
    run.error = "moved is not a number";
  } else if (run.error.empty() && repetition.steps.empty()) {
    run.error = "all of its " + std::to_string(run.metrics.steps.size()) + " steps are warm-up";
  }
  if (!run.error.empty()) {
    result.error = run.error;
    progress.note(configuration.name() + ": " + run.error);
    fail(state, run.error);
    return;
  }
  repetition.median_ms = median(step_times(repetition.steps)).value_or(0);
  repetition.peak_rss_mib = largest_or_zero(run.metrics.peak_rss_mib);
  repetition.startup_ms = run.startup_ms;
  result.steps = std::min(result.steps, static_cast<std::int64_t>(repetition.steps.size()));
  while (state.KeepRunning()) {
    state.SetIterationTime(repetition.median_ms / 1e3);
  }
  state.counters["ranks"] = configuration.world_size;
  state.counters["samples_per_second"] =
      static_cast<double>(configuration.global_batch) / (repetition.median_ms / 1e3);
  result.repetitions.emplace_back(std::move(repetition));
}

/// Google Benchmark's JSON, kept instead of printed.
class CapturingReporter : public benchmark::BenchmarkReporter {
 public:
  CapturingReporter() {
    json_.SetOutputStream(&text_);
    json_.SetErrorStream(&std::cerr);
    SetOutputStream(&std::cout);  // for --benchmark_list_tests
    SetErrorStream(&std::cerr);
  }
  bool ReportContext(const Context& context) override { return json_.ReportContext(context); }
  void ReportRuns(const std::vector<Run>& runs) override { json_.ReportRuns(runs); }
  void Finalize() override { json_.Finalize(); }

  std::string text() const { return text_.str(); }

 private:
  benchmark::JSONReporter json_;
  std::ostringstream text_;
};

template <typename Function>
void register_benchmark(const Configuration& configuration, Function function) {
  benchmark::RegisterBenchmark(configuration.name().c_str(), function)
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

RunLength run_length(const Configuration& configuration, bool parity) {
  if (parity) {
    return parity_length(configuration);
  }
  return {
      .epochs = kUnknownEpochs,
      .dataset_size = dataset_size_for(configuration.workload, configuration.global_batch),
  };
}

void initialize_benchmark(const Settings& settings) {
  // Google Benchmark keeps a pointer to argv[0].
  static std::vector<std::string> arguments;
  arguments = {std::filesystem::read_symlink("/proc/self/exe").string(),
               "--benchmark_enable_random_interleaving=true",
               "--benchmark_repetitions=" + std::to_string(settings.repetitions)};
  arguments.insert(arguments.end(), settings.benchmark_flags.begin(),
                   settings.benchmark_flags.end());
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (count > 1) {
    throw UsageError(std::string("Google Benchmark does not know ") + pointers[1] +
                     ", or its value");
  }
}

void list_benchmarks(const Plan& plan) {
  for (const Configuration& configuration : plan.configurations) {
    register_benchmark(configuration, [](benchmark::State& state) { fail(state, ""); });
  }
  CapturingReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
}

Report check_parity(const Plan& plan, const Settings& settings, StageRunner& runner,
                    Progress& progress, Interrupts& interrupts) {
  Report report;
  for (const Configuration& configuration : plan.configurations) {
    report.results.emplace_back();
    report.results.back().configuration = configuration;
  }
  // Weak and strong scaling of one program are the same run here, and stage 01 is its own
  // reference.
  std::map<std::string, StageRun> runs;
  const auto key = [](Configuration configuration) {
    configuration.scaling = "";
    return configuration.name();
  };
  const auto reference_configuration = [](Configuration configuration) {
    configuration.program = {"01_single_gpu", "01_single_gpu", "main", Start::kAlone, true};
    configuration.launcher = "none";
    configuration.backend = "none";
    configuration.world_size = 1;
    return configuration;
  };
  std::vector<Configuration> order;
  for (const Configuration& configuration : plan.configurations) {
    for (const Configuration& wanted : {reference_configuration(configuration), configuration}) {
      const bool listed = std::any_of(order.begin(), order.end(), [&](const Configuration& c) {
        return key(c) == key(wanted);
      });
      if (!listed) {
        order.push_back(wanted);
      }
    }
  }
  std::vector<double> expected_s;
  expected_s.reserve(order.size());
  double later_s = 0;
  for (const Configuration& configuration : order) {
    expected_s.push_back(assumed_seconds(configuration));
  }
  for (const Configuration& configuration : plan.configurations) {
    later_s += settings.repetitions * (assumed_seconds(configuration) + 0.3);
  }
  progress.begin("parity", expected_s, later_s);
  for (const Configuration& configuration : order) {
    if (interrupts.requested()) {
      break;
    }
    progress.start_run(configuration.name(), assumed_seconds(configuration));
    const StageRun run =
        runner.run(configuration, configuration.parity_batch, parity_length(configuration));
    progress.finish_run(run.wall_s);
    if (run.interrupted) {
      break;
    }
    if (configuration.is_baseline() && run.usage_error) {
      progress.end();
      throw UsageError("01_single_gpu refuses: " + run.error);
    }
    runs[key(configuration)] = run;
  }
  progress.end();
  report.partial = interrupts.requested();

  for (Result& result : report.results) {
    const auto own = runs.find(key(result.configuration));
    const auto reference = runs.find(key(reference_configuration(result.configuration)));
    if (own == runs.end()) {
      result.error = "interrupted before its parity was checked";
    } else if (!own->second.error.empty()) {
      result.error = own->second.error;
    } else if (!reference->second.error.empty()) {
      result.error = "no reference: 01_single_gpu: " + reference->second.error;
    } else {
      judge_parity(own->second, reference->second.metrics.moved, result);
    }
    if (!result.error.empty() && !report.partial) {
      progress.note(result.configuration.name() + ": " + result.error);
    }
  }
  return report;
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

ordered_json measure(const Settings& settings, StageRunner& runner, Progress& progress,
                     Interrupts& interrupts, Report& report) {
  std::vector<double> expected_s;
  for (Result& result : report.results) {
    register_benchmark(result.configuration, [&](benchmark::State& state) {
      const std::size_t before = result.repetitions.size();
      run_repetition(state, result, runner, progress, interrupts, report.partial);
      if (result.repetitions.size() == before) {
        result.repetitions.emplace_back(std::nullopt);
      }
    });
    if (result.error.empty()) {
      expected_s.insert(expected_s.end(), static_cast<std::size_t>(settings.repetitions),
                        expected_seconds(result));
    }
  }
  progress.begin("timed", expected_s, 0);
  CapturingReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  progress.end();
  for (Result& result : report.results) {
    if (result.error.empty() && !result.has_speed()) {
      result.error = kInterrupted;
    }
  }
  return parse_benchmark_json(reporter.text());
}

}  // namespace ddp::bench
