#include "bench/run/parity.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

#include "bench/run/catalog.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

constexpr std::int64_t kDatasetSize = 2048;  // the stages' default for synthetic data
constexpr std::int64_t kAssumedTrainSize = 1400;  // of a real dataset, until its stage told
constexpr std::int64_t kParitySteps = 48;

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

/// Rounded gradients end elsewhere: about as far away as their type rounds.
double tolerance_of(const Gradients& gradients) {
  return gradients.compression == "none" ? kParityTolerance : kCompressedParityTolerance;
}

void judge_parity(const StageRun& run, double reference_moved, Result& result) {
  const double moved = run.metrics.moved;
  result.parity.moved = finite(moved);
  result.parity.reference_moved = finite(reference_moved);
  result.parity.ok =
      parity_holds(moved, reference_moved, tolerance_of(result.configuration.gradients));
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
  result.bucket_bytes = run.metrics.all_reduce_bytes;
  result.told_bytes_per_step = run.metrics.bytes_per_step;
  result.length.dataset_size =
      dataset_size_for(result.configuration.workload, result.configuration.global_batch);
  result.steps_per_epoch = steps_per_epoch(result.configuration, run.metrics);
  // A warm-up that took half of a short run may be longer in a longer one.
  const auto steps = static_cast<std::int64_t>(run.metrics.steps.size());
  const bool may_grow = 2 * run.metrics.warmup_steps + 1 >= steps;
  result.warmup_steps = run.metrics.warmup_steps * (may_grow ? 2 : 1);
}

/// Weak and strong scaling of one program are the same run here, and so are a control and its
/// original.
std::string key(Configuration configuration) {
  configuration.scaling = "";
  return configuration.original_name();
}

Configuration reference_of(Configuration configuration) {
  configuration.program = {kBaseline, kBaseline, "main", Start::kAlone, true};
  configuration.role = Role::kStage;
  configuration.launcher = "none";
  configuration.backend = "none";
  configuration.speedup = "none";
  configuration.gradients = {};
  configuration.nodes = 1;
  configuration.world_size = 1;
  return configuration;
}

/// What to run, each once, references first.
std::vector<Configuration> parity_runs(const Plan& plan) {
  std::vector<Configuration> order;
  for (const Configuration& configuration : plan.configurations) {
    for (const Configuration& wanted : {reference_of(configuration), configuration}) {
      const bool listed = std::any_of(order.begin(), order.end(), [&](const Configuration& c) {
        return key(c) == key(wanted);
      });
      if (!listed) {
        order.push_back(wanted);
      }
    }
  }
  return order;
}

}  // namespace

double assumed_seconds(const Configuration& configuration) {
  const bool python = configuration.launcher == "torchrun" || configuration.role == Role::kPeer;
  const bool own_start = configuration.launcher == "mpirun" || configuration.launcher == "srun";
  return python ? 6.0 : own_start ? 1.5 : 1.0;
}

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
      .epochs =
          std::clamp<std::int64_t>((kParitySteps + steps_per_epoch - 1) / steps_per_epoch, 2, 50),
      .dataset_size = size,
  };
}

Report check_parity(const Plan& plan, const Settings& settings, StageRunner& runner,
                    Progress& progress, Interrupts& interrupts) {
  const std::vector<Configuration> order = parity_runs(plan);
  std::vector<double> expected_s;
  expected_s.reserve(order.size());
  for (const Configuration& configuration : order) {
    expected_s.push_back(assumed_seconds(configuration));
  }
  double later_s = 0;
  for (const Configuration& configuration : plan.configurations) {
    later_s += settings.repetitions * (assumed_seconds(configuration) + 0.3);
  }
  progress.begin("parity", expected_s, later_s);
  std::map<std::string, StageRun> runs;
  for (const Configuration& configuration : order) {
    if (interrupts.requested()) {
      break;
    }
    progress.start_run(configuration.original_name(), assumed_seconds(configuration));
    Configuration trained = configuration;
    trained.role = configuration.role == Role::kPeer ? Role::kPeer : Role::kStage;
    const StageRun run = runner.run(trained, trained.parity_batch, parity_length(trained));
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

  Report report;
  report.partial = interrupts.requested();
  for (const Configuration& configuration : plan.configurations) {
    Result& result = report.results.emplace_back();
    result.configuration = configuration;
    const auto own = runs.find(key(configuration));
    const auto reference = runs.find(key(reference_of(configuration)));
    if (own == runs.end() || reference == runs.end()) {
      result.error = "interrupted before its parity was checked";
    } else if (!own->second.error.empty()) {
      result.error = own->second.error;
    } else if (!reference->second.error.empty()) {
      result.error = "no reference: 01_single_gpu: " + reference->second.error;
    } else {
      judge_parity(own->second, reference->second.metrics.moved, result);
    }
    const bool own_row = configuration.role == Role::kStage || configuration.role == Role::kPeer;
    if (!result.error.empty() && !report.partial && own_row) {
      progress.note(configuration.name() + ": " + result.error);
    }
  }
  return report;
}

}  // namespace ddp::bench
