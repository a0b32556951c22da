#include "bench/report/conclusions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "bench/report/analysis.hpp"
#include "bench/report/format.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace {

using Names = std::vector<std::string>;
using Runs = std::vector<const Run*>;

constexpr double kNoisySpread = 2.0;  // p90 / p10 of the steps
constexpr double kBusyLoadPerCore = 0.3;  // load average at the start
constexpr double kSlowRankShare = 0.8;  // of the steps; by chance it would be 1 / ranks
constexpr double kSlowRankExcess = 0.1;
constexpr std::size_t kMaxNamed = 3;

std::string units(const Run& run) {
  return fmt::format("{} {}{}", format_small_number(run.world_size),
                     run.has_replicas() ? "replica" : "rank", run.world_size == 1 ? "" : "s");
}

/// "04_ddp_launcher under mpirun".
std::string program_of(const Run& run) {
  return run.title() + (run.has_launcher() ? " under " + run.launcher : "");
}

/// "04_ddp_launcher under mpirun on two ranks".
std::string label(const Run& run) {
  if (run.is_baseline()) {
    return run.title() + " (one process)";
  }
  const std::string nodes =
      run.nodes == 1 ? "" : fmt::format(", {} nodes", format_small_number(run.nodes));
  return fmt::format("{} on {}{}", program_of(run), units(run), nodes);
}

std::string capitalized(std::string text) {
  if (!text.empty()) {
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  }
  return text;
}

/// The first few, and how many more there are.
std::string joined_few(const Names& names) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxNamed, names.size()));
  const auto more = names.end() - end;
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

template <typename Wanted>
Runs only(Runs runs, Wanted wanted) {
  std::erase_if(runs, [&](const Run* run) { return !wanted(*run); });
  return runs;
}

/// nullptr if none has that value.
const Run* best_by(const Runs& runs, std::optional<double> Run::*value) {
  const auto best = std::ranges::max_element(runs, {}, [&](const Run* run) { return run->*value; });
  return best != runs.end() && (*best)->*value ? *best : nullptr;
}

bool contains(const Interval& interval, double value) {
  return interval.low <= value && value <= interval.high;
}

/// "95 % interval 0.98 to 1.02".
std::string format_interval(const Interval& interval) {
  return fmt::format("95 % interval {} to {}", format_significant(interval.low),
                     format_significant(interval.high));
}

/// Whether it is too close to stage 01 to say which handles more samples a second.
bool is_undecided(const Report& report, const Run& run) {
  const Comparison* const comparison = report.comparison_of(run);
  const Run* const baseline = report.baseline_of(run);
  return comparison != nullptr && comparison->ci95 && baseline != nullptr &&
         contains(*comparison->ci95, break_even_ratio(run, *baseline));
}

/// Which phase made the step longer than stage 01's, and what it spends that on. Empty if the
/// phases are not known or none of them grew.
std::string reason_for(const Run& run, const Run& baseline) {
  const PhaseTimes& own_ms = run.phases_ms;
  const PhaseTimes& base_ms = baseline.phases_ms;
  double step_ms = 0;
  std::size_t most = kPhases;
  double most_growth_ms = 0;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    if (!own_ms[phase] && phase != kImbalance) {
      return "";
    }
    step_ms += own_ms[phase].value_or(0);
    const double growth_ms = own_ms[phase].value_or(0) - base_ms[phase].value_or(0);
    if (growth_ms > most_growth_ms) {
      most = phase;
      most_growth_ms = growth_ms;
    }
  }
  if (most == kPhases || step_ms <= 0) {
    return "";
  }
  if (most == kExposedComm) {
    const double compute_ms = *own_ms[kForward] + *own_ms[kBackward] + *own_ms[kOptimizer];
    const std::optional<double>& bytes = run.comm.bytes_per_step;
    return fmt::format(
        "{} of it waits for the all-reduce{}, while forward, backward and update together take "
        "{}{} ms",
        format_percent(*own_ms[most] / step_ms), bytes ? " of " + format_bytes(*bytes) : "",
        compute_ms < *own_ms[most] ? "only " : "", format_significant(compute_ms));
  }
  const bool splits_batches = run.stage == "02_data_parallel" && run.variant == "main";
  const char* where = "";
  if (splits_batches && most == kForward) {
    where = ", where the batch is split, the model copied and the outputs are collected";
  } else if (splits_batches && most == kBackward) {
    where = ", where the gradients of all replicas are computed and added up";
  }
  return fmt::format("most of the difference is in {}, {} ms instead of {} ms{}", kPhaseNames[most],
                     format_significant(own_ms[most]),
                     format_significant(base_ms[most].value_or(0)), where);
}

/// Why `run`, with several ranks, handles fewer samples a second than one process.
std::string describe_loss(const Report& report, const Run& run) {
  const Comparison* const comparison = report.comparison_of(run);
  const auto ratio = comparison != nullptr ? comparison->ratio_median : std::nullopt;
  const std::string reason = reason_for(run, *report.baseline_of(run));
  return fmt::format(
      "{} of {} lose to one process: a step takes {}x as long{}{}{}.", capitalized(units(run)),
      program_of(run), format_significant(ratio),
      run.scaling == "weak" ? fmt::format(" for {}x the samples", run.world_size) : "",
      reason.empty() ? "" : "; ", reason);
}

std::string describe_tax(const Run& run, const Run& baseline, const Comparison& comparison) {
  const std::optional<Interval>& ci95 = comparison.ci95;
  return fmt::format(
      "With one rank, {} takes {}x the step of {}{}: {} before a second rank takes "
      "part.",
      run.title(), format_significant(comparison.ratio_median), baseline.title(),
      ci95 ? fmt::format(" ({})", format_interval(*ci95)) : "",
      ci95 && contains(*ci95, 1) ? "being distributed shows no cost"
                                 : "that is what being distributed costs");
}

/// The fastest stage against the fastest peer, at each world size that both have.
void compare_with_peers(const Report& report, const Runs& runs, std::vector<std::string>& lines) {
  std::set<int> world_sizes;
  for (const Run* run : runs) {
    world_sizes.insert(run->world_size);
  }
  for (const int world_size : world_sizes) {
    const auto best = [&](bool of_peers) {
      return best_by(only(runs,
                          [&](const Run& run) {
                            return run.world_size == world_size && run.is_peer() == of_peers;
                          }),
                     &Run::samples_per_second);
    };
    const Run* const stage = best(false);
    const Run* const peer = best(true);
    for (const Comparison& comparison : report.comparisons) {
      if (stage != nullptr && peer != nullptr && comparison.kind == "peer" &&
          comparison.ratio_median && comparison.a == stage->name && comparison.b == peer->name) {
        lines.push_back(fmt::format(
            "{}: a step of {} takes {}x that of {} at its best ({}){}.", capitalized(units(*stage)),
            stage->title(), format_significant(comparison.ratio_median), peer->stage, peer->variant,
            comparison.ci95 ? ", " + format_interval(*comparison.ci95) : ""));
      }
    }
  }
}

/// "several processes (T weak)": whose ratios have no control that could stand for them.
Names without_control(const Report& report) {
  Names kinds;
  for (const Comparison& comparison : report.comparisons) {
    for (const std::string& name : {comparison.a, comparison.b}) {
      const Run* const run = report.find(name);
      if (comparison.kind == "control" || run == nullptr) {
        continue;
      }
      const bool several = run->several_processes();
      const std::string kind = fmt::format(
          "{} ({} {})", several ? "several processes" : "one process", run->model, run->scaling);
      if (report.controls(*run, several) == Controls::kMissing &&
          std::ranges::find(kinds, kind) == kinds.end()) {
        kinds.push_back(kind);
      }
    }
  }
  return kinds;
}

/// What the A/A controls let be said.
void describe_controls(const Report& report, std::vector<std::string>& lines) {
  Names beyond;
  bool any = false;
  bool verdicts = false;
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.kind != "control") {
      verdicts = verdicts || comparison.verdict;
      continue;
    }
    any = any || comparison.ci95;
    if (comparison.ci95 && !is_control_good(comparison.ci95)) {
      beyond.push_back(
          fmt::format("{} ({}x)", comparison.b, format_significant(comparison.ratio_median)));
    }
  }
  if (any && beyond.empty()) {
    lines.push_back(fmt::format("Equal commands differed by at most {} (A/A controls){}.",
                                format_percent(kControlTolerance),
                                verdicts ? ", so the verdicts stand" : ""));
  } else if (any) {
    lines.push_back(fmt::format(
        "No verdict on what these stand for: the same command, run twice in each block, differed "
        "by more than {} from itself: {}.",
        format_percent(kControlTolerance), joined_few(beyond)));
  }
  if (const Names kinds = without_control(report); !kinds.empty()) {
    lines.push_back(fmt::format(
        "No verdict without an A/A control, the same command once more: none was measured with "
        "{}.",
        joined_few(kinds)));
  }
}

}  // namespace

std::vector<std::string> conclude(const Report& report, const Runs& runs) {
  const Run* const fastest = best_by(runs, &Run::samples_per_second);
  if (fastest == nullptr) {
    return {"Nothing could be measured."};
  }
  const Run* const baseline = report.baseline_of(*fastest);
  std::string against;
  if (is_undecided(report, *fastest)) {
    against = fmt::format(", too close to {}, {}, to tell them apart", label(*baseline),
                          format_count(baseline->samples_per_second));
  } else if (baseline != nullptr && baseline != fastest) {
    against = fmt::format(", {}x one process", format_significant(fastest->relative_speedup));
  }
  std::vector<std::string> lines = {fmt::format("Fastest: {}, {} samples/s{}.", label(*fastest),
                                                format_count(fastest->samples_per_second),
                                                against)};

  const Runs several =
      only(runs, [](const Run& run) { return run.world_size > 1 && run.efficiency; });
  Names scaled;
  for (const Run* run : several) {
    if (*run->efficiency >= kScaledEfficiency) {
      scaled.push_back(
          fmt::format("{} (efficiency {})", label(*run), format_fixed(run->efficiency, 2)));
    }
  }
  if (!scaled.empty()) {
    lines.push_back(fmt::format("Scaled: {}.", fmt::join(scaled, ", ")));
  } else if (const Run* const best = best_by(several, &Run::efficiency); best != nullptr) {
    lines.push_back(fmt::format(
        "Nothing scaled: the best efficiency is {}, of {}; {} would count as scaled.",
        format_fixed(best->efficiency, 2), label(*best), format_fixed(kScaledEfficiency, 1)));
  }

  // The best of each way to use several devices tells the most; its slower siblings lose likewise.
  for (const bool replicas : {true, false}) {
    const Runs ways = only(several, [&](const Run& run) { return run.has_replicas() == replicas; });
    const auto largest = std::ranges::max_element(ways, {}, &Run::world_size);
    const Run* const best = best_by(
        only(ways, [&](const Run& run) { return run.world_size == (*largest)->world_size; }),
        &Run::samples_per_second);
    if (best != nullptr && *best->relative_speedup < 1) {
      lines.push_back(describe_loss(report, *best));
    }
  }
  compare_with_peers(report, runs, lines);
  for (const Run* run : runs) {
    const Comparison* const comparison = report.comparison_of(*run);
    if (run->kind == "stage" && run->launcher == "spawn" && run->variant == "main" &&
        run->world_size == 1 && comparison != nullptr && comparison->ratio_median) {
      lines.push_back(describe_tax(*run, *report.baseline_of(*run), *comparison));
    }
  }
  return lines;
}

std::vector<std::string> conclude_overall(const Report& report,
                                          const std::vector<std::string>& notes) {
  std::vector<std::string> lines;
  std::map<std::string, std::vector<double>> startups_ms;
  Names noisy;
  Names undecided;
  Names without_spread;
  Names failed;
  std::size_t rows = 0;
  for (const Run& run : report.runs) {
    if (run.is_control()) {
      continue;
    }
    ++rows;
    if (run.error) {
      failed.push_back(run.name);
      continue;
    }
    const std::optional<SlowestRank>& slowest = run.slowest_rank;
    if (slowest && slowest->share_of_steps >= kSlowRankShare &&
        slowest->median_excess >= kSlowRankExcess) {
      lines.push_back(fmt::format(
          "Rank {} of {} is slow: the busiest in {} of the steps, needing {} more than the others "
          "besides waiting.",
          slowest->rank, run.name, format_percent(slowest->share_of_steps),
          format_percent(slowest->median_excess)));
    }
    if (run.startup_ms) {
      startups_ms[run.launcher == "none" ? "one process" : run.launcher].push_back(*run.startup_ms);
    }
    if (!run.step_ms.p10) {
      without_spread.push_back(run.name);
    } else if (run.step_ms.p90 && *run.step_ms.p90 > kNoisySpread * *run.step_ms.p10) {
      noisy.push_back(run.name);
    }
    if (is_undecided(report, run)) {
      undecided.push_back(run.name);
    }
  }
  if (startups_ms.size() > 1) {
    Names parts;
    for (const auto& [by, values] : startups_ms) {
      parts.push_back(fmt::format("{} {} s", by, format_significant(*median(values) / 1e3)));
    }
    lines.push_back(
        fmt::format("From the command to the end of the first step: {}.", fmt::join(parts, ", ")));
  }
  const auto add_names = [&](const std::string& what, const Names& names) {
    if (!names.empty()) {
      lines.push_back(fmt::format("{}: {}.", what, joined_few(names)));
    }
  };
  add_names(
      fmt::format("{} of {} configurations have no speed (see their errors)", failed.size(), rows),
      failed);
  describe_controls(report, lines);
  if (const std::optional<double> residual = median_residual(report)) {
    lines.push_back(fmt::format(
        "Predicted as the step without communication plus an alpha-beta model of the all-reduces, "
        "steps of several ranks come out within {} (median).",
        format_percent(*residual)));
  }
  const nlohmann::ordered_json load =
      report.machine.value("load_average", nlohmann::ordered_json());
  const int cores = report.machine.value("cores", 1);
  if (load.is_array() && !load.empty() && load[0].get<double>() > kBusyLoadPerCore * cores) {
    lines.push_back(fmt::format(
        "The machine was busy at the start (load average {:.2f} on {} core{}): do not trust small "
        "differences, repeat on an idle one.",
        load[0].get<double>(), cores, cores == 1 ? "" : "s"));
  }
  add_names(fmt::format("Noisy, p90 more than {:.0f}x p10", kNoisySpread), noisy);
  add_names(
      "Neither faster nor slower than one process, as far as these runs can tell (the 95 % "
      "interval holds the ratio of equal samples/s)",
      undecided);
  add_names(fmt::format("Fewer than {} samples, so no spread", kMinSamplesForSpread),
            without_spread);
  for (const std::string& note : notes) {
    lines.push_back(capitalized(note) + ".");
  }
  for (const NotRun& not_run : report.not_run) {
    lines.push_back(fmt::format("Not run: {} ({}).", not_run.what, not_run.reason));
  }
  if (report.partial) {
    lines.push_back("Interrupted: this report is partial.");
  }
  return lines;
}

}  // namespace ddp::bench
