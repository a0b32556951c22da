#include "bench/report/conclusions.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "bench/report/analysis.hpp"
#include "bench/report/format.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace {

constexpr double kNoisySpread = 2.0;  // p90 / p10 of the steps
constexpr double kBusyLoadPerCore = 0.3;  // load average at the start
constexpr double kSlowRankShare = 0.8;  // of the steps; by chance it would be 1 / ranks
constexpr double kSlowRankExcess = 0.1;
constexpr std::size_t kMaxNamed = 3;

std::string units(const Run& run) {
  const std::string unit = run.has_replicas() ? "replica" : "rank";
  return format_small_number(run.world_size) + " " + unit + (run.world_size == 1 ? "" : "s");
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
  const std::string text = program_of(run) + " on " + units(run);
  return run.nodes == 1 ? text : text + ", " + format_small_number(run.nodes) + " nodes";
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  }
  return text;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

/// The first few, and how many more there are.
std::string joined_few(std::vector<std::string> parts) {
  const std::size_t more = parts.size() > kMaxNamed ? parts.size() - kMaxNamed : 0;
  parts.resize(parts.size() - more);
  return joined(parts) + (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

bool contains(const Interval& interval, double value) {
  return interval.low <= value && value <= interval.high;
}

const Run* best_by(const std::vector<const Run*>& runs, std::optional<double> Run::*value) {
  const Run* best = nullptr;
  for (const Run* run : runs) {
    if (run->*value && (best == nullptr || *(run->*value) > *(best->*value))) {
      best = run;
    }
  }
  return best;
}

/// "95 % interval 0.98 to 1.02".
std::string format_interval(const Interval& interval) {
  return "95 % interval " + format_significant(interval.low) + " to " +
         format_significant(interval.high);
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
    if (!own_ms[phase]) {
      return "";
    }
    step_ms += *own_ms[phase];
    const double growth_ms = *own_ms[phase] - base_ms[phase].value_or(0);
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
    std::string text =
        format_percent(*own_ms[kExposedComm] / step_ms) + " of it waits for the all-reduce";
    if (run.comm.bytes_per_step) {
      text += " of " + format_bytes(*run.comm.bytes_per_step);
    }
    return text + ", while forward, backward and update together take " +
           (compute_ms < *own_ms[kExposedComm] ? "only " : "") + format_significant(compute_ms) +
           " ms";
  }
  std::string text = std::string("most of the difference is in ") + kPhaseNames[most] + ", " +
                     format_significant(own_ms[most]) + " ms instead of " +
                     format_significant(base_ms[most].value_or(0)) + " ms";
  const bool splits_batches = run.stage == "02_data_parallel" && run.variant == "main";
  if (splits_batches && most == kForward) {
    text += ", where the batch is split, the model copied and the outputs are collected";
  } else if (splits_batches && most == kBackward) {
    text += ", where the gradients of all replicas are computed and added up";
  }
  return text;
}

/// Why `run`, with several ranks, handles fewer samples a second than one process.
std::string describe_loss(const Report& report, const Run& run) {
  const Comparison* const comparison = report.comparison_of(run);
  const auto ratio = comparison != nullptr ? comparison->ratio_median : std::nullopt;
  std::string text = capitalized(units(run)) + " of " + program_of(run) +
                     " lose to one process: a step takes " + format_significant(ratio) +
                     "x as long";
  if (run.scaling == "weak") {
    text += " for " + std::to_string(run.world_size) + "x the samples";
  }
  const std::string reason = reason_for(run, *report.baseline_of(run));
  return text + (reason.empty() ? "." : "; " + reason + ".");
}

std::string describe_tax(const Run& run, const Run& baseline, const Comparison& comparison) {
  std::string text = "With one rank, " + run.title() + " takes " +
                     format_significant(comparison.ratio_median) + "x the step of " +
                     baseline.title();
  if (comparison.ci95) {
    text += " (" + format_interval(*comparison.ci95) + ")";
  }
  if (comparison.ci95 && contains(*comparison.ci95, 1)) {
    return text + ": being distributed shows no cost before a second rank takes part.";
  }
  return text + ": that is what being distributed costs before a second rank takes part.";
}

/// The fastest stage against the fastest peer, at each world size that both have.
std::vector<std::string> compare_with_peers(const Report& report,
                                            const std::vector<const Run*>& runs) {
  std::map<int, std::pair<const Run*, const Run*>> best;  // stage and peer by world size
  for (const Run* run : runs) {
    auto& [stage, peer] = best[run->world_size];
    const Run*& own = run->is_peer() ? peer : stage;
    own = best_by(own == nullptr ? std::vector{run} : std::vector{own, run},
                  &Run::samples_per_second);
  }
  std::vector<std::string> lines;
  for (const auto& [world_size, pair] : best) {
    const auto& [stage, peer] = pair;
    for (const Comparison& comparison : report.comparisons) {
      if (stage == nullptr || peer == nullptr || comparison.kind != "peer" ||
          !comparison.ratio_median || comparison.a != stage->name || comparison.b != peer->name) {
        continue;
      }
      const std::string line = capitalized(units(*stage)) + ": a step of " + stage->title() +
                               " takes " + format_significant(comparison.ratio_median) +
                               "x that of " + peer->stage + " at its best (" + peer->variant + ")";
      lines.push_back(line + (comparison.ci95 ? ", " + format_interval(*comparison.ci95) : "") +
                      ".");
    }
  }
  return lines;
}

/// "several processes (T weak)": whose ratios have no control that could stand for them.
std::vector<std::string> without_control(const Report& report) {
  std::vector<std::string> kinds;
  for (const Comparison& comparison : report.comparisons) {
    for (const std::string& name : {comparison.a, comparison.b}) {
      const Run* const run = report.find(name);
      if (comparison.kind == "control" || run == nullptr) {
        continue;
      }
      const bool several = run->several_processes();
      const std::string kind = std::string(several ? "several processes (" : "one process (") +
                               run->model + " " + run->scaling + ")";
      if (report.controls(*run, several) == Controls::kMissing &&
          std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
        kinds.push_back(kind);
      }
    }
  }
  return kinds;
}

/// What the A/A controls let be said.
std::vector<std::string> describe_controls(const Report& report) {
  std::vector<std::string> beyond;
  bool any = false;
  bool verdicts = false;
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.kind != "control") {
      verdicts = verdicts || comparison.verdict;
      continue;
    }
    any = true;
    if (!is_control_good(comparison.ratio_median)) {
      beyond.push_back(comparison.b + " (" + format_significant(comparison.ratio_median) + "x)");
    }
  }
  std::vector<std::string> lines;
  if (any && beyond.empty()) {
    lines.push_back("Equal commands differed by at most " + format_percent(kControlTolerance) +
                    " (A/A controls)" + (verdicts ? ", so the verdicts stand." : "."));
  } else if (any) {
    lines.push_back(
        "No verdict on what these stand for: the same command, run twice in each block, differed "
        "by more than " +
        format_percent(kControlTolerance) + " from itself: " + joined_few(beyond) + ".");
  }
  if (const std::vector<std::string> kinds = without_control(report); !kinds.empty()) {
    lines.push_back(
        "No verdict without an A/A control, the same command once more: none was "
        "measured with " +
        joined_few(kinds) + ".");
  }
  return lines;
}

}  // namespace

std::vector<std::string> conclude(const Report& report, const std::vector<const Run*>& runs) {
  std::vector<std::string> lines;
  const Run* const fastest = best_by(runs, &Run::samples_per_second);
  if (fastest == nullptr) {
    return {"Nothing could be measured."};
  }
  std::string line = "Fastest: " + label(*fastest) + ", " +
                     format_count(fastest->samples_per_second) + " samples/s";
  const Run* const baseline = report.baseline_of(*fastest);
  if (is_undecided(report, *fastest)) {
    line += ", too close to " + label(*baseline) + ", " +
            format_count(baseline->samples_per_second) + ", to tell them apart";
  } else if (baseline != nullptr && baseline != fastest) {
    line += ", " + format_significant(fastest->relative_speedup) + "x one process";
  }
  lines.push_back(line + ".");

  std::vector<const Run*> several;
  std::vector<std::string> scaled;
  for (const Run* run : runs) {
    if (run->world_size > 1 && run->efficiency) {
      several.push_back(run);
      if (*run->efficiency >= kScaledEfficiency) {
        scaled.push_back(label(*run) + " (efficiency " + format_fixed(run->efficiency, 2) + ")");
      }
    }
  }
  if (!scaled.empty()) {
    lines.push_back("Scaled: " + joined(scaled) + ".");
  } else if (const Run* const best = best_by(several, &Run::efficiency); best != nullptr) {
    lines.push_back("Nothing scaled: the best efficiency is " + format_fixed(best->efficiency, 2) +
                    ", of " + label(*best) + "; " + format_fixed(kScaledEfficiency, 1) +
                    " would count as scaled.");
  }

  // The best of each way to use several devices tells the most; its slower siblings lose likewise.
  for (const bool replicas : {true, false}) {
    std::vector<const Run*> candidates;
    int largest = 0;
    for (const Run* run : several) {
      if (run->has_replicas() == replicas) {
        candidates.push_back(run);
        largest = std::max(largest, run->world_size);
      }
    }
    std::erase_if(candidates, [&](const Run* run) { return run->world_size != largest; });
    const Run* const best = best_by(candidates, &Run::samples_per_second);
    if (best != nullptr && *best->relative_speedup < 1) {
      lines.push_back(describe_loss(report, *best));
    }
  }
  for (const std::string& sentence : compare_with_peers(report, runs)) {
    lines.push_back(sentence);
  }
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
  std::vector<std::string> noisy;
  std::vector<std::string> undecided;
  std::vector<std::string> without_spread;
  std::vector<std::string> failed;
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
    if (run.slowest_rank && run.slowest_rank->share_of_steps >= kSlowRankShare &&
        run.slowest_rank->median_excess >= kSlowRankExcess) {
      lines.push_back("Rank " + std::to_string(run.slowest_rank->rank) + " of " + run.name +
                      " is slow: the busiest in " +
                      format_percent(run.slowest_rank->share_of_steps) + " of the steps, needing " +
                      format_percent(run.slowest_rank->median_excess) +
                      " more than the others besides waiting.");
    }
    if (run.startup_ms) {
      startups_ms[run.launcher == "none" ? "one process" : run.launcher].push_back(*run.startup_ms);
    }
    if (run.step_ms.p10 && run.step_ms.p90 && *run.step_ms.p90 > kNoisySpread * *run.step_ms.p10) {
      noisy.push_back(run.name);
    }
    if (!run.step_ms.p10) {
      without_spread.push_back(run.name);
    }
    if (is_undecided(report, run)) {
      undecided.push_back(run.name);
    }
  }
  if (startups_ms.size() > 1) {
    std::vector<std::string> parts;
    parts.reserve(startups_ms.size());
    for (const auto& [by, values] : startups_ms) {
      parts.push_back(by + " " + format_significant(*median(values) / 1e3) + " s");
    }
    lines.push_back("From the command to the end of the first step: " + joined(parts) + ".");
  }
  if (!failed.empty()) {
    lines.push_back(std::to_string(failed.size()) + " of " + std::to_string(rows) +
                    " configurations have no speed (see their errors): " + joined_few(failed) +
                    ".");
  }
  for (const std::string& sentence : describe_controls(report)) {
    lines.push_back(sentence);
  }
  if (const std::optional<double> residual = median_residual(report)) {
    lines.push_back(
        "Predicted as the step without communication plus an alpha-beta model of the "
        "all-reduces, steps of several ranks come out within " +
        format_percent(*residual) + " (median).");
  }
  const nlohmann::ordered_json load =
      report.machine.value("load_average", nlohmann::ordered_json());
  const int cores = report.machine.value("cores", 1);
  if (load.is_array() && !load.empty() && load[0].get<double>() > kBusyLoadPerCore * cores) {
    lines.push_back("The machine was busy at the start (load average " +
                    format_fixed(load[0].get<double>(), 2) + " on " + std::to_string(cores) +
                    (cores == 1 ? " core" : " cores") +
                    "): do not trust small differences, repeat on an idle one.");
  }
  if (!noisy.empty()) {
    lines.push_back("Noisy, p90 more than " + format_fixed(kNoisySpread, 0) +
                    "x p10: " + joined_few(noisy) + ".");
  }
  if (!undecided.empty()) {
    lines.push_back(
        "Neither faster nor slower than one process, as far as these runs can tell "
        "(the 95 % interval holds the ratio of equal samples/s): " +
        joined_few(undecided) + ".");
  }
  if (!without_spread.empty()) {
    lines.push_back("Fewer than " + std::to_string(kMinSamplesForSpread) +
                    " samples, so no spread: " + joined_few(without_spread) + ".");
  }
  for (const std::string& note : notes) {
    lines.push_back(capitalized(note) + ".");
  }
  for (const NotRun& not_run : report.not_run) {
    lines.push_back("Not run: " + not_run.what + " (" + not_run.reason + ").");
  }
  if (report.partial) {
    lines.push_back("Interrupted: this report is partial.");
  }
  return lines;
}

}  // namespace ddp::bench
