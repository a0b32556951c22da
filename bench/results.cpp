#include "bench/results.hpp"

#include <algorithm>
#include <cmath>

namespace ddp::bench {
namespace {

/// The median of what the repetitions know; 0 stands for not known.
std::optional<double> median_of_known(const Result& result, double Repetition::*member) {
  std::vector<double> values;
  for (const std::optional<Repetition>& repetition : result.repetitions) {
    if (repetition && (*repetition).*member > 0) {
      values.push_back((*repetition).*member);
    }
  }
  return median(values);
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
  std::array<std::optional<double>, kPhases> means;
  if (!has_speed()) {
    return means;
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
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    double sum_ms = 0;
    for (const std::size_t index : middle) {
      sum_ms += all_steps[index].phase_ms[phase];
    }
    const double mean_ms = sum_ms / static_cast<double>(middle.size());
    if (std::isfinite(mean_ms)) {
      means[phase] = mean_ms;
    }
  }
  return means;
}

std::optional<double> Result::peak_rss_mib() const {
  std::optional<double> largest;
  for (const std::optional<Repetition>& repetition : repetitions) {
    if (has_speed() && repetition && repetition->peak_rss_mib > largest.value_or(0)) {
      largest = repetition->peak_rss_mib;
    }
  }
  return largest;
}

std::optional<double> Result::startup_ms() const {
  return has_speed() ? median_of_known(*this, &Repetition::startup_ms) : std::nullopt;
}

bool Report::failed() const {
  return std::any_of(results.begin(), results.end(),
                     [](const Result& result) { return !result.error.empty(); });
}

const Result* Report::baseline_of(const Result& result) const {
  for (const Result& candidate : results) {
    const Configuration& a = candidate.configuration;
    const Configuration& b = result.configuration;
    if (a.is_baseline() && a.workload.name == b.workload.name && a.scaling == b.scaling &&
        a.speedup == b.speedup && a.device == b.device && candidate.has_speed()) {
      return &candidate;
    }
  }
  return nullptr;
}

const Comparison* Report::comparison_of(const Result& result) const {
  const std::string name = result.configuration.name();
  const auto found =
      std::find_if(comparisons.begin(), comparisons.end(),
                   [&](const Comparison& comparison) { return comparison.a == name; });
  return found == comparisons.end() ? nullptr : &*found;
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

void compare_with_baselines(Report& report) {
  report.comparisons.clear();
  for (const Result& result : report.results) {
    const Result* const baseline = report.baseline_of(result);
    if (baseline == nullptr || baseline == &result || !result.has_speed()) {
      continue;
    }
    std::vector<double> ratios;
    const std::size_t count = std::min(result.repetitions.size(), baseline->repetitions.size());
    for (std::size_t k = 0; k < count; ++k) {
      const std::optional<Repetition>& a = result.repetitions[k];
      const std::optional<Repetition>& b = baseline->repetitions[k];
      if (a && b) {
        ratios.push_back(a->median_ms / b->median_ms);
      }
    }
    report.comparisons.push_back({
        .a = result.configuration.name(),
        .b = baseline->configuration.name(),
        .ratio_median = median(ratios),
        .ci95 = bootstrap_median_ci95(ratios),
        .pairs = ratios.size(),
    });
  }
}

}  // namespace ddp::bench
