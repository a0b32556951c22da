#include "bench/report/conclusions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "bench/report/analysis.hpp"
#include "bench/report/format.hpp"
#include "bench/report/verdict.hpp"

namespace ddp::bench {
namespace {

using Names = std::vector<std::string>;
using Runs = std::vector<const Run*>;

constexpr double kNoisySpread = 2.0;  // p90 / p10 of the steps
constexpr double kDisturbedShare = 0.1;  // of the processors' time, by others
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

bool contains(const Interval& interval, double value) {
  return interval.low <= value && value <= interval.high;
}

/// "0.98 to 1.02".
std::string format_ends(const Interval& interval) {
  return fmt::format("{} to {}", format_significant(interval.low),
                     format_significant(interval.high));
}

/// "1.85x (1.72 to 1.98)".
std::string format_speed(const SpeedRatio& speed) {
  return fmt::format("{}x ({})", format_significant(speed.ratio),
                     speed.ci95 ? format_ends(*speed.ci95) : "too few repetitions for an interval");
}

/// "digits: ", or "digits, strong scaling: ".
std::string prefix_of(const Run& run) {
  return run.model + (run.scaling == "weak" ? "" : ", " + run.scaling + " scaling") + ": ";
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
  if (most == kImbalance) {
    return fmt::format("{} of it is waiting for ranks that come late",
                       format_percent(*own_ms[most] / step_ms));
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

/// Collects the conclusions.
class Conclusions {
 public:
  Conclusions(const Report& report, const std::vector<std::string>& notes)
      : report_(report), notes_(notes) {}

  std::vector<Conclusion> all() {
    for (const Runs& runs : report_.workloads()) {
      name_fastest(runs);
      say_which_ranks_help(runs);
      say_what_bounds(runs);
      say_what_threads_give(runs);
      compare_with_peers(runs);
    }
    name_equal_steps();
    say_where_ranks_pay();
    say_how_long_training_takes();
    say_what_starts_cost();
    judge_launches();
    judge_runs();
    judge_controls();
    judge_predictions();
    say_what_is_missing();
    return std::move(conclusions_);
  }

 private:
  void add(const char* code, const Runs& runs, std::string text) {
    Conclusion& conclusion = conclusions_.emplace_back();
    conclusion.code = code;
    conclusion.text = std::move(text) + ".";
    for (const Run* run : runs) {
      conclusion.runs.push_back(run->name);
    }
  }

  /// The one that handles the most samples a second, with all that cannot be told apart from it.
  void name_fastest(const Runs& of_workload) {
    Runs runs = only(of_workload, [](const Run& run) { return !run.is_peer() && run.has_speed(); });
    if (runs.empty()) {
      return add("fastest", {}, prefix_of(*of_workload.front()) + "nothing could be measured");
    }
    std::ranges::stable_sort(runs, std::greater(),
                             [](const Run* run) { return run->relative_speedup.value_or(0); });
    const Run& best = *runs.front();
    Runs equals = {&best};
    Names of_equals;
    std::string next;
    for (const Run* run : Runs(runs.begin() + 1, runs.end())) {
      const std::optional<SpeedRatio> speed = speed_ratio(report_, *run, best);
      if (speed && !speed->is_told_apart) {
        equals.push_back(run);
        of_equals.push_back(fmt::format("{} {}", label(*run), format_speed(*speed)));
      } else if (speed && next.empty()) {
        next = fmt::format("; next is {}, {}", label(*run), format_speed(*speed));
      }
    }
    const std::string most =
        fmt::format("{}, {} samples/s", label(best), format_count(best.samples_per_second));
    if (of_equals.empty()) {
      add("fastest", equals, prefix_of(best) + most + next);
    } else {
      add("fastest", equals,
          fmt::format("{}not to be told apart as the fastest: {}; of that {}{}", prefix_of(best),
                      most, joined_few(of_equals), next));
    }
  }

  /// "two ranks handle 1.85x (1.72 to 1.98) the samples of one process".
  std::string describe_ranks(const Run& run, const SpeedRatio& speed) const {
    const std::string what = fmt::format("{} of {}", units(run), run.title());
    if (!speed.is_told_apart) {
      return fmt::format("{} cannot be told apart from one process, {}", what, format_speed(speed));
    }
    return fmt::format("{} {} one process, {}, efficiency {}", what,
                       speed.ratio > 1 ? "beat" : "lose to", format_speed(speed),
                       format_fixed(speed.ratio / run.world_size, 2));
  }

  /// The best at each world size against one process, replicas apart.
  void say_which_ranks_help(const Runs& of_workload) {
    for (const bool replicas : {false, true}) {
      std::map<int, const Run*> best;  // by world size
      for (const Run* run : of_workload) {
        if (run->kind == "stage" && run->has_speed() && (run->launcher == "none") == replicas &&
            (run->several_processes() || run->has_replicas()) && run->relative_speedup) {
          const Run*& so_far = best[run->world_size];
          so_far =
              so_far == nullptr || run->relative_speedup > so_far->relative_speedup ? run : so_far;
        }
      }
      for (const auto& [world_size, run] : best) {
        const Run* const baseline = report_.baseline_of(*run);
        const auto speed =
            baseline == nullptr ? std::nullopt : speed_ratio(report_, *run, *baseline);
        if (!speed) {
          continue;
        }
        const bool scaled = speed->ratio / world_size >= kScaledEfficiency;
        const std::string reason = scaled ? "" : reason_for(*run, *baseline);
        add("ranks", {run},
            prefix_of(*run) + describe_ranks(*run, *speed) + (reason.empty() ? "" : ": ") + reason);
      }
    }
    for (const Run* run : of_workload) {
      const Comparison* const comparison = report_.comparison_of(*run);
      if (run->kind == "stage" && run->launcher == "spawn" && run->variant == "main" &&
          run->world_size == 1 && comparison != nullptr && comparison->ci95) {
        add("ranks", {run},
            fmt::format("{}one rank of {} takes {}x ({}) the step of {}: {}", prefix_of(*run),
                        run->title(), format_significant(comparison->ratio_median),
                        format_ends(*comparison->ci95), report_.baseline_of(*run)->title(),
                        contains(*comparison->ci95, 1) ? "being distributed shows no cost"
                                                       : "what being distributed costs"));
      }
    }
  }

  void say_what_threads_give(const Runs& of_workload) {
    for (const Run* run : of_workload) {
      const Run* const baseline = report_.baseline_of(*run);
      if (run->threads == 1 || !run->has_speed() || baseline == nullptr) {
        continue;
      }
      if (const auto speed = speed_ratio(report_, *run, *baseline)) {
        add("threads", {run},
            fmt::format("{}{} threads of one process handle {} the samples/s of one{}",
                        prefix_of(*run), format_small_number(run->threads), format_speed(*speed),
                        speed->is_told_apart ? "" : ", which is not to be told apart"));
      }
    }
  }

  /// The fastest stage against each peer at its best, at each world size that both have.
  void compare_with_peers(const Runs& of_workload) {
    std::map<std::pair<int, std::string>, Runs> by_peer;
    for (const Run* run : of_workload) {
      if (run->is_peer() && run->has_speed()) {
        by_peer[{run->world_size, run->stage}].push_back(run);
      }
    }
    const auto fastest = [](const Runs& runs) {
      return *std::ranges::max_element(runs, {}, &Run::samples_per_second);
    };
    for (const auto& [key, variants] : by_peer) {
      const int world_size = key.first;
      const Runs stages = only(of_workload, [&](const Run& run) {
        return run.kind == "stage" && run.has_speed() && run.world_size == world_size &&
               run.several_processes() == variants.front()->several_processes();
      });
      if (stages.empty()) {
        continue;
      }
      const Run* const stage = fastest(stages);
      const Run* const peer = fastest(variants);
      if (const auto speed = speed_ratio(report_, *stage, *peer)) {
        add("peer", {stage, peer},
            fmt::format("{}{}: {} handles {} the samples/s of {}{}", prefix_of(*stage),
                        units(*stage), stage->title(), format_speed(*speed), peer->title(),
                        speed->is_told_apart ? "" : ", which is not to be told apart"));
      }
    }
  }

  /// What was not timed because another run's time is its own.
  void name_equal_steps() {
    Names programs;
    Runs timed;
    for (const ParityCheck& check : report_.parity_only) {
      const Run* const run = check.same_step_as ? report_.find(*check.same_step_as) : nullptr;
      if (run == nullptr || !check.ok) {
        continue;
      }
      std::vector<std::string> parts;  // "digits", "weak", "04_ddp_launcher", "mpirun", ...
      std::istringstream name(check.name);
      for (std::string part; std::getline(name, part, '/');) {
        parts.push_back(part);
      }
      const std::string program =
          parts.size() > 3 ? fmt::format("{} under {}", parts[2], parts[3]) : check.name;
      if (std::ranges::find(programs, program) == programs.end()) {
        programs.push_back(program);
      }
      if (std::ranges::find(timed, run) == timed.end()) {
        timed.push_back(run);
      }
    }
    if (!timed.empty()) {
      add("same_step", timed,
          fmt::format(
              "{} make the step of {} and end on the same weights (checked): choose by what "
              "starts your processes",
              fmt::join(programs, ", "), timed.front()->title()));
    }
  }

  void say_where_ranks_pay() {
    for (const Crossover& sweep : report_.crossover) {
      Runs runs;
      std::optional<SpeedRatio> first;
      std::optional<SpeedRatio> last;
      for (const CrossoverValue& value : sweep.values) {
        if (const Run* const run = report_.find(value.run)) {
          runs.push_back(run);
        }
        if (value.speedup) {
          last = SpeedRatio{*value.speedup, value.ci95};
          first = first ? first : last;
        }
      }
      if (!first) {
        continue;
      }
      const std::string range =
          fmt::format("{} at {} {}, {} at {}", format_speed(*first), sweep.axis,
                      sweep.values.front().value, format_speed(*last), sweep.values.back().value);
      add("crossover", runs,
          sweep.crosses_at
              ? fmt::format("{}: {} ranks beat one process from a {} of about {} on ({})",
                            sweep.sweep, format_small_number(sweep.world_size), sweep.axis,
                            format_significant(sweep.crosses_at), range)
              : fmt::format("{}: {} ranks {} at every {} that was measured ({})", sweep.sweep,
                            format_small_number(sweep.world_size),
                            last->ratio > 1 ? "beat one process" : "lose to one process",
                            sweep.axis, range));
    }
  }

  void say_how_long_training_takes() {
    for (const TimeToAccuracy& training : report_.time_to_accuracy) {
      const std::string what = fmt::format(
          "{} to {}: {} on {} at a global batch of {}{}", training.dataset,
          format_percent(training.target), training.program,
          training.world_size == 1 ? "one process"
                                   : format_small_number(training.world_size) + " ranks",
          training.global_batch, training.scale_lr ? " with the learning rate scaled" : "");
      if (!training.epochs || !training.seconds.median) {
        add("time_to_accuracy", {},
            what + " does not get there: " + training.error.value_or("it was not timed"));
        continue;
      }
      const std::string spread =
          training.seconds.p10
              ? fmt::format(" (p10 {}, p90 {})", format_significant(training.seconds.p10),
                            format_significant(training.seconds.p90))
              : "";
      add("time_to_accuracy", {},
          fmt::format("{} takes {} epochs, {} s{}, {} s from the command on", what,
                      *training.epochs, format_significant(training.seconds.median), spread,
                      format_significant(training.seconds_with_start.median)));
    }
  }

  void say_what_starts_cost() {
    std::map<std::string, std::vector<double>> startups_ms;
    for (const Run& run : report_.runs) {
      if (!run.is_control() && run.startup_ms) {
        startups_ms[run.launcher == "none" ? "one process" : run.launcher].push_back(
            *run.startup_ms);
      }
    }
    Names parts;
    for (const auto& [by, values] : startups_ms) {
      parts.push_back(fmt::format("{} {} s", by, format_significant(*median(values) / 1e3)));
    }
    if (parts.size() > 1) {
      add("startup", {},
          fmt::format("From the command to the end of the first step: {}", fmt::join(parts, ", ")));
    }
  }

  /// Launches that were slow as a whole, and what ran beside them.
  void judge_launches() {
    SlowLaunches communicating;
    SlowLaunches others;
    const Run* worst = nullptr;
    std::int64_t launches = 0;
    std::int64_t disturbed = 0;
    double most_share = 0;
    for (const Run& run : report_.runs) {
      SlowLaunches& sum = run.several_processes() ? communicating : others;
      sum.k += run.slow_launches.k;
      sum.n += run.slow_launches.n;
      if (run.slow_launches.k > (worst == nullptr ? 0 : worst->slow_launches.k)) {
        worst = &run;
      }
      for (const std::optional<Repetition>& launch : run.repetitions) {
        if (launch) {
          const double share =
              launch->others_busy_share.value_or(0) + launch->steal_share.value_or(0);
          ++launches;
          disturbed += share >= kDisturbedShare ? 1 : 0;
          most_share = std::max(most_share, share);
        }
      }
    }
    if (worst != nullptr) {
      add("slow_launches", {worst},
          fmt::format(
              "Launches slower as a whole, over {} times the fastest of the same command: {} of {} "
              "that communicate, {} of {} others{}; most in {}, {} of {}: {} samples/s by the "
              "clock, {} "
              "in the median step",
              format_significant(kSlowLaunch), communicating.k, communicating.n, others.k, others.n,
              communicating.k > 0 && others.k == 0 ? ", so it is communication that has a slow mode"
                                                   : "",
              worst->name, worst->slow_launches.k, worst->slow_launches.n,
              format_count(worst->wall_samples_per_second),
              format_count(worst->samples_per_second)));
    }
    if (disturbed > 0) {
      add("disturbed", {},
          fmt::format("{} of {} launches ran beside other programs, or virtual machines, that took "
                      "{} or more of the "
                      "processors' time, up to {}",
                      disturbed, launches, format_percent(kDisturbedShare),
                      format_percent(most_share)));
    }
  }

  void judge_runs() {
    Names noisy;
    Names without_spread;
    Names failed;
    std::size_t rows = 0;
    for (const Run& run : report_.runs) {
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
        add("slow_rank", {&run},
            fmt::format(
                "Rank {} of {} is slow: the busiest in {} of the steps, needing {} more than the "
                "others besides waiting",
                slowest->rank, run.name, format_percent(slowest->share_of_steps),
                format_percent(slowest->median_excess)));
      }
      if (!run.step_ms.p10) {
        without_spread.push_back(run.name);
      } else if (run.step_ms.p90 && *run.step_ms.p90 > kNoisySpread * *run.step_ms.p10) {
        noisy.push_back(run.name);
      }
    }
    for (const ParityCheck& check : report_.parity_only) {
      ++rows;
      if (!check.ok) {
        failed.push_back(check.name);
      }
    }
    add_names("failed",
              fmt::format("{} of {} configurations have no speed (see their errors)", failed.size(),
                          rows),
              failed);
    add_names("noisy", fmt::format("Noisy, p90 of the steps more than {:.0f}x p10", kNoisySpread),
              noisy);
    add_names("no_spread", fmt::format("Fewer than {} steps, so no spread", kMinSamplesForSpread),
              without_spread);
  }

  void add_names(const char* code, const std::string& what, const Names& names) {
    if (!names.empty()) {
      add(code, {}, fmt::format("{}: {}", what, joined_few(names)));
      conclusions_.back().runs = names;
    }
  }

  /// What the A/A controls let be said.
  void judge_controls() {
    Names ranges;
    bool hold = true;
    for (const Comparison& comparison : report_.comparisons) {
      if (comparison.kind == "control" && comparison.ci95) {
        hold = hold && is_control_good(comparison.ci95);
        ranges.push_back(fmt::format("{} {}", comparison.b, format_ends(*comparison.ci95)));
      }
    }
    const bool verdicts =
        std::ranges::any_of(report_.comparisons, [](const Comparison& comparison) {
          return comparison.kind != "control" && comparison.verdict;
        });
    if (!ranges.empty() && hold) {
      add("controls", {},
          fmt::format("Equal commands differed by at most {}, interval and all (A/A controls){}",
                      format_percent(kControlTolerance),
                      verdicts ? ", so the verdicts stand" : ""));
    } else if (!ranges.empty()) {
      add("controls", {},
          fmt::format(
              "Equal commands, run in each block (A/A controls), differed by {}: smaller "
              "differences are not called any, and no verdict stands where that is more than {}",
              joined_few(ranges), format_percent(kControlTolerance)));
    }
    if (const Names kinds = without_control(report_); !kinds.empty()) {
      add("no_control", {},
          fmt::format("No verdict without an A/A control, the same command once more in 6 blocks "
                      "or more: none "
                      "was measured with {}",
                      joined_few(kinds)));
    }
  }

  void judge_predictions() {
    for (const std::string& sentence : describe_predictions(report_)) {
      add("prediction", {}, sentence);
    }
  }

  /// The fastest process alone, and the fastest of several.
  void say_what_bounds(const Runs& of_workload) {
    Names parts;
    Runs shown;
    for (const bool several : {false, true}) {
      const Runs runs = only(of_workload, [&](const Run& run) {
        return run.kind == "stage" && run.has_speed() && run.bound &&
               run.several_processes() == several && (several || run.is_baseline());
      });
      const auto best = std::ranges::max_element(runs, {}, &Run::samples_per_second);
      if (best != runs.end()) {
        shown.push_back(*best);
        const double over_floor = *(*best)->step_ms.median / (*best)->floor_ms.value_or(0);
        parts.push_back(
            fmt::format("{} by {}{}", label(**best), *(*best)->bound,
                        std::isfinite(over_floor)
                            ? fmt::format(" (a step takes {}x the least that this machine allows)",
                                          format_significant(over_floor))
                            : ""));
      }
    }
    if (!parts.empty()) {
      add("bound", shown, fmt::format("{}{}", prefix_of(*shown.front()), fmt::join(parts, "; ")));
    }
  }

  void say_what_is_missing() {
    const auto busy = report_.machine.value("busy_before_share", nlohmann::ordered_json());
    if (busy.is_number() && busy.get<double>() >= kDisturbedShare) {
      add("busy", {},
          fmt::format("Other programs kept {} of the processors busy before the first run: do not "
                      "trust small differences, repeat on an idle machine",
                      format_percent(busy.get<double>())));
    }
    for (const std::string& note : notes_) {
      add("note", {}, capitalized(note));
    }
    for (const NotRun& not_run : report_.not_run) {
      add("not_run", {}, fmt::format("Not run: {} ({})", not_run.what, not_run.reason));
    }
    if (report_.partial) {
      add("partial", {}, "Interrupted: this report is partial");
    }
  }

  const Report& report_;
  const std::vector<std::string>& notes_;
  std::vector<Conclusion> conclusions_;
};

}  // namespace

std::vector<Conclusion> conclude(const Report& report, const std::vector<std::string>& notes) {
  return Conclusions(report, notes).all();
}

}  // namespace ddp::bench
