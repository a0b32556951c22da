#include "bench/report/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::bench {
namespace {

constexpr std::string_view kControlSuffix = "/control";

Comparison compare_two(const std::string& kind, const Run& a, const Run& b) {
  std::vector<double> ratios;
  std::ranges::transform(a.repetition_medians_ms, b.repetition_medians_ms,
                         std::back_inserter(ratios), std::divides());
  std::erase_if(ratios, [](double ratio) { return !std::isfinite(ratio); });
  return {
      .kind = kind,
      .a = a.name,
      .b = b.name,
      .ratio_median = median(ratios),
      .ci95 = bootstrap_median_ci95(ratios),
      .pairs = ratios.size(),
      .verdict = std::nullopt,
  };
}

/// Each side needs a control of its kind: ranks that wait for each other are disturbed far more
/// than a process that is alone.
bool controls_hold(const Report& report, const Run& a, const Run& b) {
  return report.controls(a, a.several_processes()) == Controls::kHold &&
         report.controls(b, b.several_processes()) == Controls::kHold;
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

bool is_control_good(const std::optional<double>& ratio) {
  return ratio && std::abs(*ratio - 1) <= kControlTolerance;
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
      add("variant", run, *main, 1);
    }
    for (const Run& peer : report.runs) {
      if (!run.is_peer() && peer.is_peer() && peer.has_speed() && same_work(run, peer) &&
          run.world_size == peer.world_size) {
        add("peer", run, peer, 1);
      }
    }
  }
}

}  // namespace ddp::bench
