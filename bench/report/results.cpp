#include "bench/report/results.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace {

/// What the repetitions know of `member`; 0 stands for not known.
std::vector<double> known(const Result& result, double Repetition::*member) {
  std::vector<double> values;
  for (const std::optional<Repetition>& repetition : result.repetitions) {
    if (result.has_speed() && repetition && (*repetition).*member > 0) {
      values.push_back((*repetition).*member);
    }
  }
  return values;
}

std::optional<double> largest(const std::vector<double>& values) {
  return values.empty() ? std::nullopt
                        : std::optional(*std::max_element(values.begin(), values.end()));
}

bool same_work(const Configuration& a, const Configuration& b) {
  return a.workload.name == b.workload.name && a.scaling == b.scaling && a.device == b.device;
}

std::vector<double> paired_ratios(const Result& a, const Result& b) {
  std::vector<double> ratios;
  const std::size_t count = std::min(a.repetitions.size(), b.repetitions.size());
  for (std::size_t k = 0; k < count; ++k) {
    if (a.repetitions[k] && b.repetitions[k]) {
      ratios.push_back(a.repetitions[k]->median_ms / b.repetitions[k]->median_ms);
    }
  }
  return ratios;
}

Comparison compare_two(Comparison::Kind kind, const Result& a, const Result& b) {
  const std::vector<double> ratios = paired_ratios(a, b);
  return {
      .kind = kind,
      .a = a.configuration.name(),
      .b = b.configuration.name(),
      .ratio_median = median(ratios),
      .ci95 = bootstrap_median_ci95(ratios),
      .pairs = ratios.size(),
      .verdict = std::nullopt,
  };
}

/// Each side needs a control of its kind: ranks that wait for each other are disturbed far more
/// than a process that is alone.
bool controls_hold(const Report& report, const Result& a, const Result& b) {
  const auto holds = [&](const Result& result) {
    return report.controls(result, result.configuration.processes() > 1) == Controls::kHold;
  };
  return holds(a) && holds(b);
}

}  // namespace

bool Result::has_speed() const {
  return error.empty() && parity.ok &&
         std::any_of(repetitions.begin(), repetitions.end(),
                     [](const std::optional<Repetition>& r) { return r.has_value(); });
}

std::vector<double> Result::samples_ms() const {
  std::vector<double> samples;
  if (!has_speed()) {
    return samples;
  }
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (repetition) {
      for (const Step& step : repetition->steps) {
        samples.push_back(step.step_ms);
      }
    }
  }
  return samples;
}

Distribution Result::step_ms() const {
  return summarize(samples_ms());
}

std::optional<double> Result::samples_per_second() const {
  const std::optional<double> median_ms = step_ms().median;
  if (!median_ms || *median_ms <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(configuration.global_batch) / (*median_ms / 1e3);
}

std::array<std::optional<double>, kPhases> Result::phases_ms() const {
  std::array<std::optional<double>, kPhases> parts;
  if (!has_speed()) {
    return parts;
  }
  std::vector<Step> all_steps;
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (repetition) {
      all_steps.insert(all_steps.end(), repetition->steps.begin(), repetition->steps.end());
    }
  }
  std::vector<double> durations_ms;
  durations_ms.reserve(all_steps.size());
  for (const Step& step : all_steps) {
    durations_ms.push_back(step.step_ms);
  }
  const std::vector<std::size_t> middle = around_median(durations_ms);
  double steps_sum_ms = 0;
  for (const std::size_t index : middle) {
    steps_sum_ms += durations_ms[index];
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    double sum_ms = 0;
    for (const std::size_t index : middle) {
      sum_ms += all_steps[index].phase_ms[phase];
    }
    const double part_ms = *median(durations_ms) * sum_ms / steps_sum_ms;
    if (std::isfinite(part_ms)) {
      parts[phase] = part_ms;
    }
  }
  return parts;
}

std::optional<double> Result::peak_rss_mib() const {
  return largest(known(*this, &Repetition::peak_rss_mib));
}

std::optional<double> Result::job_peak_rss_mib() const {
  return largest(known(*this, &Repetition::job_peak_rss_mib));
}

std::optional<double> Result::startup_ms() const {
  return median(known(*this, &Repetition::startup_ms));
}

std::optional<double> Result::cpu_utilisation() const {
  std::vector<double> values;
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (has_speed() && repetition && repetition->cpu_utilisation) {
      values.push_back(*repetition->cpu_utilisation);
    }
  }
  return median(values);
}

std::optional<GpuUsage> Result::gpu() const {
  std::vector<double> utilisation;
  std::vector<double> power;
  std::vector<double> memory;
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (has_speed() && repetition && repetition->gpu) {
      utilisation.push_back(repetition->gpu->utilisation_percent);
      power.push_back(repetition->gpu->power_w);
      memory.push_back(repetition->gpu->memory_mib);
    }
  }
  if (utilisation.empty()) {
    return std::nullopt;
  }
  return GpuUsage{*median(utilisation), *median(power), *largest(memory)};
}

std::optional<SlowestRank> Result::slowest_rank() const {
  std::optional<SlowestRank> clearest;
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (has_speed() && repetition && repetition->slowest_rank &&
        (!clearest || repetition->slowest_rank->share_of_steps > clearest->share_of_steps)) {
      clearest = repetition->slowest_rank;
    }
  }
  return clearest;
}

std::optional<double> Result::bytes_per_step() const {
  if (configuration.processes() == 1) {
    return 0;
  }
  return bucket_bytes.empty()
             ? told_bytes_per_step
             : std::optional(std::accumulate(bucket_bytes.begin(), bucket_bytes.end(), 0.0));
}

std::optional<double> Result::exposed_by_difference_ms() const {
  const std::optional<double> median_ms = step_ms().median;
  return median_ms && no_comm_step_ms ? std::optional(*median_ms - *no_comm_step_ms) : std::nullopt;
}

std::optional<double> Result::hidden_share() const {
  const std::optional<double> exposed_ms = exposed_by_difference_ms();
  return exposed_ms && alone_ms && *alone_ms > 0 ? std::optional(1 - *exposed_ms / *alone_ms)
                                                 : std::nullopt;
}

std::optional<double> Result::bus_bandwidth_gbps() const {
  const std::optional<double> bytes = bytes_per_step();
  if (!bytes || !alone_ms || !(*alone_ms > 0) || configuration.world_size < 2) {
    return std::nullopt;
  }
  const double ranks = configuration.world_size;
  return *bytes / (*alone_ms / 1e3) * 2 * (ranks - 1) / ranks / 1e9;
}

std::optional<double> Result::residual() const {
  const std::optional<double> median_ms = step_ms().median;
  return median_ms && prediction && prediction->step_ms() > 0
             ? std::optional(*median_ms / prediction->step_ms() - 1)
             : std::nullopt;
}

bool Report::failed() const {
  return std::any_of(results.begin(), results.end(),
                     [](const Result& result) { return !result.error.empty(); });
}

const Result* Report::baseline_of(const Result& result) const {
  for (const Result& candidate : results) {
    const Configuration& a = candidate.configuration;
    const Configuration& b = result.configuration;
    if (a.is_baseline() && same_work(a, b) && a.speedup == b.speedup && candidate.has_speed()) {
      return &candidate;
    }
  }
  return nullptr;
}

const Result* Report::find(const std::string& name) const {
  const auto found = std::find_if(results.begin(), results.end(), [&](const Result& result) {
    return result.configuration.name() == name;
  });
  return found == results.end() ? nullptr : &*found;
}

const Comparison* Report::comparison_of(const Result& result) const {
  const std::string name = result.configuration.name();
  const auto found =
      std::find_if(comparisons.begin(), comparisons.end(), [&](const Comparison& comparison) {
        return comparison.kind == Comparison::Kind::kBaseline && comparison.a == name;
      });
  return found == comparisons.end() ? nullptr : &*found;
}

Controls Report::controls(const Result& result, bool several) const {
  Controls found = Controls::kMissing;
  for (const Comparison& comparison : comparisons) {
    const Result* const control =
        comparison.kind == Comparison::Kind::kControl ? find(comparison.a) : nullptr;
    if (control == nullptr || !same_work(control->configuration, result.configuration) ||
        (control->configuration.processes() > 1) != several) {
      continue;
    }
    if (!is_control_good(comparison.ratio_median)) {
      return Controls::kDiffer;
    }
    found = Controls::kHold;
  }
  return found;
}

std::optional<double> Report::relative_speedup(const Result& result) const {
  const Result* const baseline = baseline_of(result);
  const std::optional<double> own = result.samples_per_second();
  const std::optional<double> reference =
      baseline == nullptr ? std::nullopt : baseline->samples_per_second();
  if (!own || !reference || *reference <= 0) {
    return std::nullopt;
  }
  return *own / *reference;
}

std::optional<double> Report::efficiency(const Result& result) const {
  const std::optional<double> speedup = relative_speedup(result);
  if (!speedup) {
    return std::nullopt;
  }
  return *speedup / result.configuration.world_size;
}

void compare(Report& report) {
  report.comparisons.clear();
  for (const Result& result : report.results) {
    const Result* const original = report.find(result.configuration.original_name());
    if (result.configuration.role == Role::kControl && original != nullptr && result.has_speed() &&
        original->has_speed()) {
      report.comparisons.push_back(compare_two(Comparison::Kind::kControl, result, *original));
      report.comparisons.back().verdict = judge(report.comparisons.back().ci95, 1);
    }
  }
  const auto add = [&](Comparison::Kind kind, const Result& a, const Result& b, double even) {
    Comparison comparison = compare_two(kind, a, b);
    if (controls_hold(report, a, b)) {
      comparison.verdict = judge(comparison.ci95, even);
    }
    report.comparisons.push_back(comparison);
  };
  for (const Result& result : report.results) {
    const Configuration& own = result.configuration;
    const Result* const baseline = report.baseline_of(result);
    const bool row = own.role == Role::kStage || own.role == Role::kPeer;
    if (!row || !result.has_speed()) {
      continue;
    }
    if (baseline != nullptr && baseline != &result) {
      // With more samples in a step it may take longer and still be the faster one.
      add(Comparison::Kind::kBaseline, result, *baseline,
          static_cast<double>(own.global_batch) /
              static_cast<double>(baseline->configuration.global_batch));
    }
    for (const Result& peer : report.results) {
      const Configuration& other = peer.configuration;
      if (own.role == Role::kStage && other.role == Role::kPeer && peer.has_speed() &&
          same_work(own, other) && own.world_size == other.world_size) {
        add(Comparison::Kind::kPeer, result, peer, 1);
      }
    }
  }
}

}  // namespace ddp::bench
