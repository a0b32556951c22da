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

std::string units(const Configuration& configuration, int count) {
  const std::string unit = configuration.program.start == Start::kReplicas ? "replica" : "rank";
  return format_small_number(count) + " " + unit + (count == 1 ? "" : "s");
}

/// "04_ddp_launcher under mpirun on two ranks".
std::string label(const Configuration& configuration) {
  std::string text = configuration.title();
  if (configuration.program.start == Start::kLauncher) {
    text += " under " + configuration.launcher;
  }
  if (configuration.is_baseline()) {
    return text + " (one process)";
  }
  text += " on " + units(configuration, configuration.world_size);
  return configuration.nodes == 1
             ? text
             : text + ", " + format_small_number(configuration.nodes) + " nodes";
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

/// The ratio of step times at which a configuration handles as many samples a second as stage 01.
double break_even_ratio(const Result& result, const Result& baseline) {
  return static_cast<double>(result.configuration.global_batch) /
         static_cast<double>(baseline.configuration.global_batch);
}

bool contains(const Interval& interval, double value) {
  return interval.low <= value && value <= interval.high;
}

const Result* best_by(const std::vector<const Result*>& results,
                      std::optional<double> (*value)(const Report&, const Result&),
                      const Report& report) {
  const Result* best = nullptr;
  for (const Result* result : results) {
    if (value(report, *result) && (!best || *value(report, *result) > *value(report, *best))) {
      best = result;
    }
  }
  return best;
}

std::optional<double> speed_of(const Report&, const Result& result) {
  return result.samples_per_second();
}

std::optional<double> efficiency_of(const Report& report, const Result& result) {
  return report.efficiency(result);
}

/// Which phase made the step longer than stage 01's, and what it spends that on. Empty if the
/// phases are not known or none of them grew.
std::string reason_for(const Result& result, const Result& baseline) {
  const auto own_ms = result.phases_ms();
  const auto base_ms = baseline.phases_ms();
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
    if (result.bytes_per_step()) {
      text += " of " + format_bytes(*result.bytes_per_step());
    }
    return text + ", while forward, backward and update together take " +
           (compute_ms < *own_ms[kExposedComm] ? "only " : "") + format_significant(compute_ms) +
           " ms";
  }
  std::string text = std::string("most of the difference is in ") + kPhaseNames[most] + ", " +
                     format_significant(own_ms[most]) + " ms instead of " +
                     format_significant(base_ms[most].value_or(0)) + " ms";
  if (result.configuration.program.name == "02_data_parallel" && most == kForward) {
    text += ", where the batch is split, the model copied and the outputs are collected";
  } else if (result.configuration.program.name == "02_data_parallel" && most == kBackward) {
    text += ", where the gradients of all replicas are computed and added up";
  }
  return text;
}

/// Why `result`, with several ranks, handles fewer samples a second than one process.
std::string describe_loss(const Report& report, const Result& result) {
  const Result& baseline = *report.baseline_of(result);
  const Configuration& configuration = result.configuration;
  const Comparison* const comparison = report.comparison_of(result);
  const std::optional<double> ratio =
      comparison != nullptr ? comparison->ratio_median : std::nullopt;
  std::string text =
      capitalized(units(configuration, configuration.world_size)) + " of " + configuration.title();
  if (configuration.program.start == Start::kLauncher) {
    text += " under " + configuration.launcher;
  }
  text += " lose to one process: a step takes " + format_significant(ratio) + "x as long";
  if (configuration.scaling == "weak") {
    text += " for " + std::to_string(configuration.world_size) + "x the samples";
  }
  const std::string reason = reason_for(result, baseline);
  return text + (reason.empty() ? "." : "; " + reason + ".");
}

std::string describe_tax(const Result& result, const Result& baseline,
                         const Comparison& comparison) {
  std::string text = "With one rank, " + result.configuration.title() + " takes " +
                     format_significant(comparison.ratio_median) + "x the step of " +
                     baseline.configuration.title();
  if (comparison.ci95) {
    text += " (95 % interval " + format_significant(comparison.ci95->low) + " to " +
            format_significant(comparison.ci95->high) + ")";
  }
  if (comparison.ci95 && contains(*comparison.ci95, 1)) {
    return text + ": being distributed shows no cost before a second rank takes part.";
  }
  return text + ": that is what being distributed costs before a second rank takes part.";
}

/// The fastest stage against the fastest peer, at each world size that both have.
std::vector<std::string> compare_with_peers(const Report& report,
                                            const std::vector<const Result*>& results) {
  std::map<int, std::pair<const Result*, const Result*>> best;  // stage and peer by world size
  for (const Result* result : results) {
    const std::optional<double> speed = result->samples_per_second();
    if (!speed) {
      continue;
    }
    auto& [stage, peer] = best[result->configuration.world_size];
    const Result*& own = result->configuration.role == Role::kPeer ? peer : stage;
    if (own == nullptr || *speed > *own->samples_per_second()) {
      own = result;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [world_size, pair] : best) {
    const auto& [stage, peer] = pair;
    if (stage == nullptr || peer == nullptr) {
      continue;
    }
    for (const Comparison& comparison : report.comparisons) {
      if (comparison.kind != Comparison::Kind::kPeer || !comparison.ratio_median ||
          comparison.a != stage->configuration.name() ||
          comparison.b != peer->configuration.name()) {
        continue;
      }
      std::string line = capitalized(units(stage->configuration, world_size)) + ": a step of " +
                         stage->configuration.title() + " takes " +
                         format_significant(comparison.ratio_median) + "x that of " +
                         peer->configuration.program.name + " at its best (" +
                         peer->configuration.program.variant + ")";
      if (comparison.ci95) {
        line += ", 95 % interval " + format_significant(comparison.ci95->low) + " to " +
                format_significant(comparison.ci95->high);
      }
      lines.push_back(line + ".");
    }
  }
  return lines;
}

/// "several processes (T weak)": whose ratios have no control that could stand for them.
std::vector<std::string> without_control(const Report& report) {
  std::vector<std::string> kinds;
  for (const Comparison& comparison : report.comparisons) {
    for (const std::string& name : {comparison.a, comparison.b}) {
      const Result* const result = report.find(name);
      if (comparison.kind == Comparison::Kind::kControl || result == nullptr) {
        continue;
      }
      const Configuration& configuration = result->configuration;
      const bool several = configuration.processes() > 1;
      const std::string kind = std::string(several ? "several processes (" : "one process (") +
                               configuration.workload.name + " " + configuration.scaling + ")";
      if (report.controls(*result, several) == Controls::kMissing &&
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
    if (comparison.kind != Comparison::Kind::kControl) {
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

std::vector<std::string> conclude(const Report& report, const std::vector<const Result*>& results) {
  std::vector<std::string> lines;
  const Result* const fastest = best_by(results, speed_of, report);
  if (fastest == nullptr) {
    return {"Nothing could be measured."};
  }
  std::string line = "Fastest: " + label(fastest->configuration) + ", " +
                     format_count(fastest->samples_per_second()) + " samples/s";
  const Result* const baseline = report.baseline_of(*fastest);
  const Comparison* const to_one_process = report.comparison_of(*fastest);
  if (baseline != nullptr && to_one_process != nullptr && to_one_process->ci95 &&
      contains(*to_one_process->ci95, break_even_ratio(*fastest, *baseline))) {
    line += ", too close to " + label(baseline->configuration) + ", " +
            format_count(baseline->samples_per_second()) + ", to tell them apart";
  } else if (baseline != nullptr && baseline != fastest) {
    line += ", " + format_significant(report.relative_speedup(*fastest)) + "x one process";
  }
  lines.push_back(line + ".");

  std::vector<const Result*> several;
  std::vector<std::string> scaled;
  for (const Result* result : results) {
    const std::optional<double> efficiency = report.efficiency(*result);
    if (result->configuration.world_size > 1 && efficiency) {
      several.push_back(result);
      if (*efficiency >= kScaledEfficiency) {
        scaled.push_back(label(result->configuration) + " (efficiency " +
                         format_fixed(efficiency, 2) + ")");
      }
    }
  }
  if (!scaled.empty()) {
    lines.push_back("Scaled: " + joined(scaled) + ".");
  } else if (const Result* const best = best_by(several, efficiency_of, report); best != nullptr) {
    lines.push_back("Nothing scaled: the best efficiency is " +
                    format_fixed(report.efficiency(*best), 2) + ", of " +
                    label(best->configuration) + "; " + format_fixed(kScaledEfficiency, 1) +
                    " would count as scaled.");
  }

  // The best of each way to use several devices tells the most; its slower siblings lose likewise.
  for (const bool replicas : {true, false}) {
    std::vector<const Result*> candidates;
    int largest = 0;
    for (const Result* result : several) {
      if ((result->configuration.program.start == Start::kReplicas) == replicas) {
        candidates.push_back(result);
        largest = std::max(largest, result->configuration.world_size);
      }
    }
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                    [&](const Result* result) {
                                      return result->configuration.world_size != largest;
                                    }),
                     candidates.end());
    const Result* const best = best_by(candidates, speed_of, report);
    if (best != nullptr && *report.relative_speedup(*best) < 1) {
      lines.push_back(describe_loss(report, *best));
    }
  }
  for (const std::string& sentence : compare_with_peers(report, results)) {
    lines.push_back(sentence);
  }
  for (const Result* result : results) {
    const Comparison* const comparison = report.comparison_of(*result);
    if (result->configuration.role == Role::kStage &&
        result->configuration.program.start == Start::kSpawn &&
        result->configuration.program.variant == "main" && result->configuration.world_size == 1 &&
        comparison != nullptr && comparison->ratio_median) {
      lines.push_back(describe_tax(*result, *report.baseline_of(*result), *comparison));
    }
  }
  return lines;
}

std::vector<std::string> conclude_overall(const Plan& plan, const Report& report,
                                          const nlohmann::ordered_json& machine) {
  std::vector<std::string> lines;
  std::map<std::string, std::vector<double>> startups_ms;
  std::vector<std::string> noisy;
  std::vector<std::string> undecided;
  std::vector<std::string> without_spread;
  std::vector<std::string> failed;
  std::size_t rows = 0;
  for (const Result& result : report.results) {
    const Configuration& configuration = result.configuration;
    if (configuration.role == Role::kControl || configuration.role == Role::kNoCommunication) {
      continue;
    }
    ++rows;
    if (!result.error.empty()) {
      failed.push_back(configuration.name());
      continue;
    }
    const std::optional<SlowestRank> slowest = result.slowest_rank();
    if (slowest && slowest->share_of_steps >= kSlowRankShare &&
        slowest->median_excess >= kSlowRankExcess) {
      lines.push_back("Rank " + std::to_string(slowest->rank) + " of " + configuration.name() +
                      " is slow: the busiest in " + format_percent(slowest->share_of_steps) +
                      " of the steps, needing " + format_percent(slowest->median_excess) +
                      " more than the others besides waiting.");
    }
    if (const std::optional<double> startup_ms = result.startup_ms()) {
      const std::string by =
          configuration.launcher == "none" ? "one process" : configuration.launcher;
      startups_ms[by].push_back(*startup_ms);
    }
    const Distribution step_ms = result.step_ms();
    if (step_ms.p10 && step_ms.p90 && *step_ms.p90 > kNoisySpread * *step_ms.p10) {
      noisy.push_back(configuration.name());
    }
    if (!step_ms.p10) {
      without_spread.push_back(configuration.name());
    }
    const Comparison* const comparison = report.comparison_of(result);
    const Result* const baseline = report.baseline_of(result);
    if (comparison != nullptr && comparison->ci95 && baseline != nullptr &&
        contains(*comparison->ci95, break_even_ratio(result, *baseline))) {
      undecided.push_back(configuration.name());
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
  const nlohmann::ordered_json load = machine.value("load_average", nlohmann::ordered_json());
  const int cores = machine.value("cores", 1);
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
  for (const std::string& note : plan.notes) {
    lines.push_back(capitalized(note) + ".");
  }
  for (const NotRun& not_run : plan.not_run) {
    lines.push_back("Not run: " + not_run.what + " (" + not_run.reason + ").");
  }
  if (report.partial) {
    lines.push_back("Interrupted: this report is partial.");
  }
  return lines;
}

}  // namespace ddp::bench
