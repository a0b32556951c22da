#include "bench/run/results.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include "bench/report/crossover.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace {

std::optional<double> positive(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

/// What `known` says of those runs of which it knows something.
template <typename Known>
auto values_of(const std::vector<std::optional<StageRun>>& runs, Known known) {
  std::vector<typename std::decay_t<std::invoke_result_t<Known, const StageRun&>>::value_type>
      values;
  for (const std::optional<StageRun>& run : runs) {
    if (const auto value = run ? std::invoke(known, *run) : std::nullopt) {
      values.push_back(*value);
    }
  }
  return values;
}

template <typename Known>
auto values_of(const Result& result, Known known) {
  return values_of(result.repetitions, known);
}

std::optional<double> largest(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional(std::ranges::max(values));
}

/// Nothing unless all ranks told theirs.
std::optional<double> job_peak_rss_mib(const StageRun& run) {
  const std::vector<double>& ranks = run.metrics.peak_rss_mib;
  return ranks.size() == static_cast<std::size_t>(run.metrics.ranks) ? positive(sum(ranks))
                                                                     : std::nullopt;
}

/// The median step, divided as the steps around it are. Their phases are means over ranks, whose
/// sum is the job's step only about; what is known of a step is not stretched over what is not.
PhaseTimes divide_median_step(const std::vector<Step>& steps, double median_ms) {
  const std::vector<std::size_t> middle = around_median(step_times_ms(steps));
  const auto sum_of_middle = [&](auto part_of) {
    double sum_ms = 0;
    for (const std::size_t index : middle) {
      sum_ms += part_of(steps[index]);
    }
    return sum_ms;
  };
  double parts_sum_ms = 0;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    parts_sum_ms += sum_of_middle([&](const Step& step) { return step.phase_ms[phase]; });
  }
  const double whole_ms = std::isfinite(parts_sum_ms)
                              ? parts_sum_ms
                              : sum_of_middle([](const Step& step) { return step.step_ms; });
  PhaseTimes parts_ms;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const double phase_ms = sum_of_middle([&](const Step& step) { return step.phase_ms[phase]; });
    if (const double part_ms = median_ms * phase_ms / whole_ms; std::isfinite(part_ms)) {
      parts_ms[phase] = part_ms;
    }
  }
  return parts_ms;
}

std::optional<GpuUsage> gpu_of(const Result& result) {
  const std::vector<GpuUsage> usages = values_of(result, &StageRun::gpu);
  const auto all = [&](double GpuUsage::*field) {
    std::vector<double> values;
    for (const GpuUsage& usage : usages) {
      values.push_back(usage.*field);
    }
    return values;
  };
  std::vector<double> energies_j;
  for (const GpuUsage& usage : usages) {
    if (usage.energy_j_per_sample) {
      energies_j.push_back(*usage.energy_j_per_sample);
    }
  }
  return usages.empty()
             ? std::nullopt
             : std::optional(GpuUsage{*median(all(&GpuUsage::utilisation_percent)),
                                      *median(all(&GpuUsage::power_w)),
                                      *largest(all(&GpuUsage::memory_mib)), median(energies_j)});
}

/// By its excess over the launches, estimated as all ratios are. In which launch a rank comes late
/// by chance differs; the interval says how sure it is that this one always does.
std::optional<SlowestRank> slowest_rank_of(const Result& result) {
  std::map<int, std::pair<std::vector<double>, std::vector<double>>> by_rank;
  for (const std::optional<StageRun>& launch : result.repetitions) {
    for (const SlowestRank& rank :
         launch ? compare_ranks(launch->metrics) : std::vector<SlowestRank>()) {
      by_rank[rank.rank].first.push_back(rank.share_of_steps);
      by_rank[rank.rank].second.push_back(1 + rank.median_excess);
    }
  }
  std::optional<SlowestRank> slowest;
  for (const auto& [rank, shares_and_ratios] : by_rank) {
    const auto& [shares, ratios] = shares_and_ratios;
    const std::optional<PairedEstimate> ratio = paired_ratio(ratios);
    if (ratio && (!slowest || ratio->value > 1 + slowest->median_excess)) {
      slowest = {rank, *median(shares), ratio->value - 1};
      if (ratio->ci95) {
        slowest->excess_ci95 = {ratio->ci95->low - 1, ratio->ci95->high - 1};
      }
    }
  }
  return slowest;
}

/// None where it cannot be told from 0.
std::optional<double> unless_zero(double value, const Interval& ci95) {
  const bool holds_zero = ci95.low <= 0 && ci95.high >= 0;
  return holds_zero ? std::nullopt : std::optional(value);
}

/// What communication adds to the step, and how much of it computing hides.
void find_exposed(const Result& result, Communication& comm) {
  const std::vector<double> with_ms = result.repetition_medians_ms();
  std::vector<double> differences_ms;
  std::ranges::transform(with_ms, result.no_comm_medians_ms, std::back_inserter(differences_ms),
                         std::minus());
  std::erase_if(differences_ms, [](double ms) { return !std::isfinite(ms); });
  const std::optional<PairedEstimate> exposed_ms = paired_difference(differences_ms);
  if (!exposed_ms || !exposed_ms->ci95) {
    return;
  }
  comm.exposed_by_difference_ci95_ms = exposed_ms->ci95;
  comm.exposed_by_difference_ms = unless_zero(exposed_ms->value, *exposed_ms->ci95);
  if (comm.alone_ms && *comm.alone_ms > 0) {
    const auto hidden_share = [&](double ms) { return 1 - ms / *comm.alone_ms; };
    const Interval ci95 = {hidden_share(exposed_ms->ci95->high),
                           hidden_share(exposed_ms->ci95->low)};
    comm.hidden_share_ci95 = ci95;
    // No share: ranks that come late add more than communication takes alone, or noise takes some
    // away.
    if (ci95.low >= 0 && ci95.high <= 1) {
      comm.hidden_share = hidden_share(exposed_ms->value);
    }
  }
}

Communication communication_of(const Result& result) {
  const std::vector<double>& bytes = result.bucket_bytes;
  const int world_size = result.configuration.world_size;
  Communication comm;
  comm.alone_ms = result.alone_ms;
  comm.bucket_bytes = bytes;
  comm.bytes_per_step = result.configuration.processes() == 1 ? std::optional(0.0)
                        : bytes.empty()                       ? result.told_bytes_per_step
                                                              : std::optional(sum(bytes));
  find_exposed(result, comm);
  if (result.alone_ms && *result.alone_ms > 0 && comm.bytes_per_step && world_size > 1) {
    comm.bus_bandwidth_gbps =
        *comm.bytes_per_step / (*result.alone_ms / 1e3) * bus_factor(world_size) / 1e9;
  }
  return comm;
}

/// Each rank's own, of several, without warm-up.
std::vector<std::vector<double>> rank_samples_ms(const StageMetrics& metrics) {
  std::vector<std::vector<double>> samples_ms;
  const auto first = static_cast<std::ptrdiff_t>(metrics.first_timed_step());
  for (const std::vector<double>& steps_ms : metrics.step_ms_of_rank) {
    samples_ms.emplace_back(steps_ms.begin() + first, steps_ms.end());
  }
  return samples_ms.size() > 1 ? samples_ms : decltype(samples_ms)();
}

Repetition make_repetition(const StageRun& stage_run, std::int64_t global_batch) {
  const StageMetrics& metrics = stage_run.metrics;
  const LaunchConditions& conditions = stage_run.conditions;
  const auto of_all_ranks = [](const std::vector<double>& counts) {
    const double total = counts.empty() ? std::nan("") : sum(counts);
    return std::isfinite(total) ? std::optional(static_cast<std::int64_t>(total)) : std::nullopt;
  };
  const std::vector<Step> steps = metrics.timed_steps();
  Repetition repetition;
  repetition.samples_ms = step_times_ms(steps);
  repetition.median_ms = median(repetition.samples_ms);
  repetition.wall_samples_per_second = wall_samples_per_second(global_batch, steps);
  repetition.startup_ms = positive(stage_run.startup_ms);
  repetition.started = conditions.started;
  repetition.rank_samples_ms = rank_samples_ms(metrics);
  repetition.minor_faults = of_all_ranks(metrics.minor_faults);
  repetition.major_faults = of_all_ranks(metrics.major_faults);
  repetition.voluntary_switches = of_all_ranks(metrics.voluntary_switches);
  repetition.involuntary_switches = of_all_ranks(metrics.involuntary_switches);
  repetition.steal_share = conditions.steal_share;
  repetition.others_busy_share = conditions.others_busy_share;
  repetition.affinity = conditions.affinity;
  repetition.scheduling = conditions.scheduling;
  return repetition;
}

/// Launches whose median step is over kSlowLaunch times that of the fastest.
SlowLaunches count_slow_launches(const Run& run) {
  const std::vector<double> medians_ms = run.known_medians_ms();
  const double limit_ms = medians_ms.empty() ? 0 : kSlowLaunch * std::ranges::min(medians_ms);
  return {std::ranges::count_if(medians_ms, [&](double ms) { return ms > limit_ms; }),
          std::ssize(medians_ms)};
}

Run make_run(const Result& result) {
  const Configuration& configuration = result.configuration;
  Run run;
  run.name = configuration.name();
  run.kind = configuration.role == Role::kPeer      ? "peer"
             : configuration.role == Role::kControl ? "control"
                                                    : "stage";
  run.stage = configuration.program.stage;
  run.variant = configuration.program.variant;
  run.launcher = configuration.launcher;
  run.backend = configuration.backend;
  run.speedup = configuration.speedup;
  run.bucket_mib = configuration.gradients.bucket_mib;
  run.gradient_compression = configuration.gradients.compression;
  run.shard_optimizer = configuration.gradients.shard_optimizer;
  run.device = configuration.device;
  run.model = configuration.workload.name;
  run.scaling = configuration.scaling;
  run.nodes = configuration.nodes;
  run.world_size = configuration.world_size;
  run.threads = configuration.threads;
  run.global_batch = configuration.global_batch;
  run.parity = result.parity;
  if (!result.error.empty()) {
    run.error = result.error;
  }
  run.layers = configuration.workload.layers;
  run.parameters = count_parameters(run.layers);
  run.flops = step_flop(run.layers, static_cast<double>(run.global_batch));
  const std::vector<Step> steps = result.timed_steps();
  run.step_ms = summarize(step_times_ms(steps));
  for (std::size_t block = 0; block < result.repetitions.size(); ++block) {
    std::optional<Repetition>& launch = run.repetitions.emplace_back();
    if (const std::optional<StageRun>& made = result.repetitions[block];
        result.was_measured() && made) {
      launch = make_repetition(*made, run.global_batch);
      if (block < result.no_comm_medians_ms.size()) {
        launch->no_comm_median_ms = positive(result.no_comm_medians_ms[block]);  // or not a number
      }
    }
  }
  run.slow_launches = count_slow_launches(run);
  run.no_comm_step_ms = result.no_comm_step_ms;
  run.comm = communication_of(result);
  if (!run.has_speed()) {
    return run;
  }
  run.samples_per_second =
      static_cast<double>(configuration.global_batch) / (*run.step_ms.median / 1e3);
  run.wall_samples_per_second = wall_samples_per_second(configuration.global_batch, steps);
  run.gflops = *run.flops / 1e9 / (*run.step_ms.median / 1e3);
  run.phases_ms = divide_median_step(steps, *run.step_ms.median);
  const std::vector<std::int64_t> step_counts = values_of(result, [](const StageRun& repetition) {
    return std::optional(static_cast<std::int64_t>(repetition.metrics.timed_steps().size()));
  });
  run.steps = std::ranges::min(step_counts);
  const std::vector whole_start = {result.whole_start};
  const auto& starts = result.whole_start ? whole_start : result.repetitions;
  run.peak_rss_mib = largest(values_of(starts, [](const StageRun& start) {
    return positive(largest_or_zero(start.metrics.peak_rss_mib));
  }));
  run.peak_device_mib = largest(values_of(result, [](const StageRun& repetition) {
    return positive(largest_or_zero(repetition.metrics.peak_device_mib));
  }));
  run.job_peak_rss_mib = largest(values_of(starts, job_peak_rss_mib));
  run.cpu_utilisation = median(values_of(
      result, [](const StageRun& repetition) { return repetition.metrics.cpu_utilisation(); }));
  run.startup_ms =
      median(values_of(starts, [](const StageRun& start) { return positive(start.startup_ms); }));
  run.gpu = gpu_of(result);
  run.slowest_rank = slowest_rank_of(result);
  // The k-th repetition trains as the first one did.
  run.loss = median(values_of(result, [](const StageRun& r) { return r.metrics.loss; }));
  run.accuracy = median(values_of(result, [](const StageRun& r) { return r.metrics.accuracy; }));
  return run;
}

ParityCheck make_parity_check(const Result& result, const Measurements& measurements) {
  ParityCheck check = {.name = result.configuration.name(),
                       .moved = result.parity.moved,
                       .reference_moved = result.parity.reference_moved,
                       .ok = result.parity.ok};
  if (!result.error.empty()) {
    check.error = result.error;
  }
  // Whoever starts the ranks, they make the same step.
  Configuration spawned = result.configuration;
  spawned.program.name = kDistributed;
  spawned.launcher = "spawn";
  for (const Result& other : measurements.results) {
    if (result.configuration.program.start == Start::kLauncher && other.configuration.is_timed() &&
        other.configuration.name() == spawned.name()) {
      check.same_step_as = spawned.name();
    }
  }
  return check;
}

/// What stage 01 of the same report says of each run.
void rate(Report& report) {
  for (Run& run : report.runs) {
    const Comparison* const comparison = report.comparison_of(run);
    const Run* const baseline = report.baseline_of(run);
    if (baseline == &run) {
      run.relative_speedup = 1;
    } else if (comparison != nullptr && comparison->ratio_median) {
      run.relative_speedup = break_even_ratio(run, *baseline) / *comparison->ratio_median;
    }
    if (run.relative_speedup) {
      run.efficiency = *run.relative_speedup / (run.world_size * run.threads);
    }
  }
}

}  // namespace

bool Result::was_measured() const {
  return error.empty() && parity.ok &&
         std::ranges::any_of(repetitions, &std::optional<StageRun>::has_value);
}

std::vector<Step> Result::timed_steps() const {
  std::vector<Step> all;
  for (const std::optional<StageRun>& repetition : repetitions) {
    if (was_measured() && repetition) {
      const std::vector<Step> steps = repetition->metrics.timed_steps();
      all.insert(all.end(), steps.begin(), steps.end());
    }
  }
  return all;
}

std::vector<double> Result::repetition_medians_ms() const {
  std::vector<double> medians_ms;
  for (const std::optional<StageRun>& repetition : repetitions) {
    const auto known = was_measured() && repetition
                           ? median(step_times_ms(repetition->metrics.timed_steps()))
                           : std::nullopt;
    medians_ms.push_back(known.value_or(std::nan("")));
  }
  return medians_ms;
}

bool Measurements::failed() const {
  return std::ranges::any_of(results, [](const Result& r) { return !r.error.empty(); });
}

int Measurements::blocks() const {
  int most = 0;
  for (const Result& result : results) {
    most = std::max(most, result.configuration.repetitions);
  }
  return most;
}

std::optional<double> mean_power_w(const std::vector<GpuPower>& samples, const Interval& unix_ms) {
  if (samples.empty() || !(unix_ms.low < unix_ms.high)) {
    return std::nullopt;
  }
  const auto power_at = [&](double moment_ms) {
    const auto after = std::ranges::lower_bound(samples, moment_ms, {}, &GpuPower::unix_ms);
    if (after == samples.begin() || after == samples.end()) {
      return after == samples.begin() ? samples.front().power_w : samples.back().power_w;
    }
    const GpuPower& before = *std::prev(after);
    return std::lerp(before.power_w, after->power_w,
                     (moment_ms - before.unix_ms) / (after->unix_ms - before.unix_ms));
  };
  std::vector<GpuPower> corners = {{unix_ms.low, power_at(unix_ms.low)}};
  std::ranges::copy_if(samples, std::back_inserter(corners), [&](const GpuPower& sample) {
    return sample.unix_ms > unix_ms.low && sample.unix_ms < unix_ms.high;
  });
  corners.push_back({unix_ms.high, power_at(unix_ms.high)});
  double area = 0;
  for (std::size_t i = 1; i < corners.size(); ++i) {
    area += (corners[i].unix_ms - corners[i - 1].unix_ms) *
            (corners[i].power_w + corners[i - 1].power_w) / 2;
  }
  return area / (unix_ms.high - unix_ms.low);
}

Report make_report(const Measurements& measurements) {
  Report report;
  report.limits = measurements.micro.limits;
  report.all_reduce = measurements.micro.all_reduce;
  report.micro = measurements.micro.pieces;
  report.partial = measurements.partial;
  for (const Result& result : measurements.results) {
    if (!result.configuration.is_timed()) {
      report.parity_only.push_back(make_parity_check(result, measurements));
    } else if (result.configuration.role != Role::kNoCommunication) {
      report.runs.push_back(make_run(result));
    }
  }
  report.time_to_accuracy = measurements.time_to_accuracy;
  compare(report);
  rate(report);
  report.crossover = find_crossovers(report);
  analyse(report, measurements.network);
  return report;
}

}  // namespace ddp::bench
