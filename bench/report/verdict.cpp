#include "bench/report/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::bench {
namespace {

constexpr std::string_view kControlSuffix = "/control";

Comparison compare_two(const std::string& kind, const Run& a, const Run& b) {
  const std::vector<double> ratios = paired_ratios(a, b);
  Comparison comparison = {.kind = kind, .a = a.name, .b = b.name, .pairs = ratios.size()};
  if (const std::optional<PairedEstimate> estimate = paired_ratio(ratios)) {
    comparison.ratio_median = estimate->value;
    comparison.ci95 = estimate->ci95;
  }
  return comparison;
}

/// Each side needs a control of its kind: ranks that wait for each other are disturbed far more
/// than a process that is alone.
bool controls_hold(const Report& report, const Run& a, const Run& b) {
  return is_control_good(control_interval(report, a)) &&
         is_control_good(control_interval(report, b));
}

/// The main program of a variant's stage, started alike.
const Run* main_of(const Report& report, const Run& run) {
  const std::string variant = fmt::format("/{}_{}/", run.stage, run.variant);
  const std::size_t place = run.name.find(variant);
  return place == std::string::npos ? nullptr
                                    : report.find(std::string(run.name).replace(
                                          place, variant.size(), fmt::format("/{}/", run.stage)));
}

}  // namespace

bool is_control_good(const std::optional<Interval>& ci95) {
  return ci95 && ci95->low >= 1 - kControlTolerance && ci95->high <= 1 + kControlTolerance;
}

std::vector<double> paired_ratios(const Run& a, const Run& b) {
  std::vector<double> ratios;
  const auto median_ms = [](const std::optional<Repetition>& repetition) {
    return repetition ? repetition->median_ms : std::nullopt;
  };
  for (std::size_t k = 0; k < std::min(a.repetitions.size(), b.repetitions.size()); ++k) {
    const std::optional<double> a_ms = median_ms(a.repetitions[k]);
    const std::optional<double> b_ms = median_ms(b.repetitions[k]);
    if (a_ms && b_ms) {
      ratios.push_back(*a_ms / *b_ms);
    }
  }
  return ratios;
}

std::optional<std::string> judge(const std::optional<Interval>& ci95, double even) {
  if (!ci95) {
    return std::nullopt;
  }
  if (ci95->low >= even * (1 - kControlTolerance) && ci95->high <= even * (1 + kControlTolerance)) {
    return "same";
  }
  if (ci95->high < even) {
    return "faster";
  }
  return ci95->low > even ? std::optional<std::string>("slower") : std::nullopt;
}

double break_even_ratio(const Run& run, const Run& baseline) {
  return static_cast<double>(run.global_batch) / static_cast<double>(baseline.global_batch);
}

std::optional<Interval> control_interval(const Report& report, const Run& run) {
  std::optional<Interval> all;
  for (const Comparison& comparison : report.comparisons) {
    const Run* const control = comparison.kind == "control" ? report.find(comparison.a) : nullptr;
    if (control != nullptr && comparison.ci95 && same_work(*control, run) &&
        control->keeps_several_busy() == run.keeps_several_busy()) {
      all = all.value_or(*comparison.ci95);
      all = {std::min(all->low, comparison.ci95->low), std::max(all->high, comparison.ci95->high)};
    }
  }
  return all;
}

std::optional<SpeedRatio> speed_ratio(const Report& report, const Run& a, const Run& b) {
  const std::optional<PairedEstimate> steps = paired_ratio(paired_ratios(a, b));
  if (!steps) {
    return std::nullopt;
  }
  const double even = break_even_ratio(a, b);
  SpeedRatio speed = {.ratio = even / steps->value};
  if (steps->ci95) {
    speed.ci95 = {even / steps->ci95->high, even / steps->ci95->low};
    const std::optional<Interval> of_a = control_interval(report, a);
    const std::optional<Interval> of_b = control_interval(report, b);
    if (of_a && of_b) {
      const double factor = std::max({of_a->high, 1 / of_a->low, of_b->high, 1 / of_b->low});
      speed.control_factor = factor;
      speed.is_told_apart = speed.ci95->low > factor || speed.ci95->high < 1 / factor;
    }
  }
  return speed;
}

void compare(Report& report) {
  const auto add = [&](const std::string& kind, const Run& a, const Run& b, double even) {
    Comparison comparison = compare_two(kind, a, b);
    if (kind == "control" || controls_hold(report, a, b)) {
      comparison.verdict = judge(comparison.ci95, even);
    }
    report.comparisons.push_back(comparison);
  };
  // The verdicts on the other runs need all controls.
  for (const Run& run : report.runs) {
    const Run* const original =
        run.is_control() ? report.find(run.name.substr(0, run.name.size() - kControlSuffix.size()))
                         : nullptr;
    if (run.has_speed() && original != nullptr && original->has_speed()) {
      add("control", run, *original, 1);
    }
  }
  for (const Run& run : report.runs) {
    if (run.is_control() || !run.has_speed()) {
      continue;
    }
    const Run* const baseline = report.baseline_of(run);
    if (baseline != nullptr && baseline != &run) {
      add("baseline", run, *baseline, break_even_ratio(run, *baseline));
    }
    const Run* const main = main_of(report, run);
    if (!run.is_peer() && main != nullptr && main->has_speed()) {
      add("variant", run, *main, break_even_ratio(run, *main));
    }
    for (const Run& peer : report.runs) {
      if (!run.is_peer() && peer.is_peer() && peer.has_speed() && same_work(run, peer) &&
          run.world_size == peer.world_size && run.threads == peer.threads) {
        add("peer", run, peer, break_even_ratio(run, peer));
      }
    }
  }
}

}  // namespace ddp::bench
