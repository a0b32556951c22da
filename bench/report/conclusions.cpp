#include "bench/report/conclusions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
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
constexpr double kSlowRankExcess = 0.1;  // at least, by its interval
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
  if (run.is_baseline() || run.threads > 1) {
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

/// "0.98 to 1.02".
std::string format_ends(const Interval& interval) {
  return fmt::format("{} to {}", format_significant(interval.low),
                     format_significant(interval.high));
}

/// " (shm against gloo)" where these differ.
std::string backends_of(const Run& a, const Run& b) {
  return a.backend == b.backend ? "" : fmt::format(" ({} against {})", a.backend, b.backend);
}

/// "1.85x (1.72 to 1.98)".
std::string format_speed(const SpeedRatio& speed) {
  return fmt::format("{}x ({})", format_significant(speed.ratio),
                     speed.ci95 ? format_ends(*speed.ci95) : "too few repetitions for an interval");
}

/// Why a difference is not believed although its interval excludes 1; empty if it is, or does not.
std::string control_limit(const SpeedRatio& speed) {
  const bool excludes_1 = speed.ci95 && (speed.ci95->low > 1 || speed.ci95->high < 1);
  return !speed.is_told_apart && excludes_1 && speed.control_factor
             ? fmt::format(", but equal commands differed by up to {}x",
                           format_significant(speed.control_factor))
             : "";
}

/// ", not told apart", where that is so.
std::string unless_told_apart(const SpeedRatio& speed) {
  return speed.is_told_apart ? "" : ", not told apart" + control_limit(speed);
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
    return fmt::format("{} of its step is waiting for ranks that come late",
                       format_percent(*own_ms[most] / step_ms));
  }
  if (most == kExposedComm) {
    const double compute_ms = *own_ms[kForward] + *own_ms[kBackward] + *own_ms[kOptimizer];
    const std::optional<double>& bytes = run.comm.bytes_per_step;
    return fmt::format(
        "{} of its step waits for the all-reduce{}, while forward, backward and update together "
        "take {}{} ms",
        format_percent(*own_ms[most] / step_ms), bytes ? " of " + format_bytes(*bytes) : "",
        compute_ms < *own_ms[most] ? "only " : "", format_significant(compute_ms));
  }
  const bool splits_batches = run.stage == "02_data_parallel" && run.variant == "main";
  const char* where = "";
  if (splits_batches && most == kForward) {
    where =
        ", where the batch is split, the replicas get the weights and the outputs are collected";
  } else if (splits_batches && most == kBackward) {
    where = ", where the gradients of all replicas are computed and added up";
  }
  return fmt::format("{} takes {} ms instead of {} ms{}", kPhaseNames[most],
                     format_significant(own_ms[most]),
                     format_significant(base_ms[most].value_or(0)), where);
}

/// "several processes (T weak)": whose ratios have no control that could stand for them.
Names without_control(const Report& report) {
  Names kinds;
  for (const Comparison& comparison : report.comparisons) {
    for (const std::string& name : {comparison.a, comparison.b}) {
      const Run* const run = report.find(name);
      if (comparison.kind == "control" || run == nullptr || report.is_swept(*run)) {
        continue;
      }
      const std::string kind =
          fmt::format("{} ({} {})", run->keeps_several_busy() ? "several processes" : "one process",
                      run->model, run->scaling);
      if (!control_interval(report, *run) && std::ranges::find(kinds, kind) == kinds.end()) {
        kinds.push_back(kind);
      }
    }
  }
  return kinds;
}

/// Of the question that it answers among kQuestions; behind them if it answers none.
std::size_t place_of(const Conclusion& conclusion) {
  return static_cast<std::size_t>(std::ranges::find(kQuestions, conclusion.code, &Question::code) -
                                  kQuestions);
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
    // By question, each with its workloads in order; what answers none keeps its place behind.
    std::ranges::stable_sort(conclusions_, {}, place_of);
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

  /// By ratios within blocks, which no slow minute shifts; nullptr for none.
  const Run* fastest_of(const Runs& runs) const {
    const Run* fastest = runs.empty() ? nullptr : runs.front();
    for (const Run* run : runs) {
      const std::optional<SpeedRatio> speed = speed_ratio(report_, *run, *fastest);
      fastest = speed && speed->ratio > 1 ? run : fastest;
    }
    return fastest;
  }

  /// The run of stage 03 whose step this one makes too, under a launcher: to choose between the two
  /// by their times would be to choose by chance. nullptr for none.
  const Run* spawned_twin(const Run& run) const {
    const auto twin = std::ranges::find_if(report_.runs, [&](const Run& other) {
      return other.kind == "stage" && other.stage == kDistributed && other.variant == "main" &&
             other.launcher == "spawn" && other.has_speed() && same_work(run, other) &&
             other.world_size == run.world_size && other.backend == run.backend &&
             other.speedup == run.speedup && other.bucket_mib == run.bucket_mib &&
             other.gradient_compression == run.gradient_compression &&
             other.shard_optimizer == run.shard_optimizer;
    });
    const bool is_launched = run.kind == "stage" && run.has_launcher() && run.nodes == 1;
    return is_launched && twin != report_.runs.end() ? &*twin : nullptr;
  }

  /// The one that handles the most samples a second, with all that cannot be told apart from it.
  void name_fastest(const Runs& of_workload) {
    Runs runs = only(of_workload, [&](const Run& run) {
      return !run.is_peer() && run.has_speed() && spawned_twin(run) == nullptr;
    });
    if (runs.empty()) {
      return add("fastest", {}, prefix_of(*of_workload.front()) + "nothing could be measured");
    }
    std::ranges::stable_sort(runs, std::greater(), &Run::relative_speedup);
    const Run& best = *fastest_of(runs);
    Runs equals = {&best};
    Names of_equals;
    std::string slower;
    for (const Run* run : only(runs, [&](const Run& run) { return &run != &best; })) {
      const std::optional<SpeedRatio> speed = speed_ratio(report_, *run, best);
      if (speed && !speed->is_told_apart) {
        equals.push_back(run);
        of_equals.push_back(fmt::format("{} {}", label(*run), format_speed(*speed)));
      } else if (speed && slower.empty()) {
        slower = fmt::format("; slower: {} {}", label(*run), format_speed(*speed));
      }
    }
    add("fastest", equals,
        fmt::format("{}most samples/s: {}{}{}", prefix_of(best), label(best),
                    of_equals.empty() ? "" : "; not told apart from it: " + joined_few(of_equals),
                    slower));
  }

  /// "two ranks of 03_ddp_spawn beat one process, 1.85x (1.72 to 1.98), efficiency 0.93".
  std::string describe_ranks(const Run& run, const SpeedRatio& speed) const {
    const std::string what = fmt::format("{} of {}", units(run), run.title());
    const std::string speeds = fmt::format("{}, efficiency {}", format_speed(speed),
                                           format_fixed(speed.ratio / run.world_size, 2));
    return speed.is_told_apart ? fmt::format("{} {} one process, {}", what,
                                             speed.ratio > 1 ? "beat" : "lose to", speeds)
                               : fmt::format("whether {} beat one process cannot be told, {}{}",
                                             what, speeds, control_limit(speed));
  }

  /// The fastest at each world size against one process, replicas apart, and what one rank costs.
  void say_which_ranks_help(const Runs& of_workload) {
    for (const bool replicas : {false, true}) {
      std::map<int, Runs> by_world_size;
      for (const Run* run : of_workload) {
        if (run->kind == "stage" && run->has_speed() && spawned_twin(*run) == nullptr &&
            (run->launcher == "none") == replicas &&
            (run->several_processes() || run->has_replicas()) && run->relative_speedup) {
          by_world_size[run->world_size].push_back(run);
        }
      }
      for (const auto& [world_size, runs] : by_world_size) {
        const Run* const run = fastest_of(runs);
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
          run->world_size == 1 && comparison != nullptr && comparison->ci95 &&
          report_.baseline_of(*run) != nullptr) {
        const Run& baseline = *report_.baseline_of(*run);
        const auto speed = speed_ratio(report_, *run, baseline);
        const bool is_told_apart = speed && speed->is_told_apart;
        add("ranks", {run},
            fmt::format("{}one rank of {} takes {}x ({}) the step of {}: {}", prefix_of(*run),
                        run->title(), format_significant(comparison->ratio_median),
                        format_ends(*comparison->ci95), baseline.title(),
                        !is_told_apart ? "whether being distributed costs anything cannot be told"
                        : *comparison->ratio_median > 1 ? "that is what being distributed costs"
                                                        : "it is faster"));
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
                        unless_told_apart(*speed)));
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
    for (const auto& [key, variants] : by_peer) {
      const int world_size = key.first;
      const Runs stages = only(of_workload, [&](const Run& run) {
        return run.kind == "stage" && run.has_speed() && run.world_size == world_size &&
               run.threads == variants.front()->threads &&
               run.several_processes() == variants.front()->several_processes() &&
               spawned_twin(run) == nullptr;
      });
      if (stages.empty()) {
        continue;
      }
      const Run* const stage = fastest_of(stages);
      const Run* const peer = fastest_of(variants);
      if (const auto speed = speed_ratio(report_, *stage, *peer)) {
        add("peer", {stage, peer},
            fmt::format("{}{}: {} handles {} the samples/s of {}{}{}", prefix_of(*stage),
                        units(*stage), stage->title(), format_speed(*speed), peer->title(),
                        backends_of(*stage, *peer), unless_told_apart(*speed)));
      }
    }
  }

  /// Which programs make the step of stage 03's run, be it that they were timed or only checked.
  void name_equal_steps() {
    Names programs;
    Runs spawned;
    const auto note = [&](const std::string& program, const Run* run) {
      if (std::ranges::find(programs, program) == programs.end()) {
        programs.push_back(program);
      }
      if (std::ranges::find(spawned, run) == spawned.end()) {
        spawned.push_back(run);
      }
    };
    for (const Run& run : report_.runs) {
      const Run* const twin = spawned_twin(run);
      if (twin != nullptr && twin->parity.ok && run.parity.ok) {
        note(program_of(run), twin);
      }
    }
    for (const ParityCheck& check : report_.parity_only) {
      const Run* const run = check.same_step_as ? report_.find(*check.same_step_as) : nullptr;
      if (run == nullptr || !run->parity.ok || !check.ok) {
        continue;
      }
      std::vector<std::string> parts;  // "digits", "weak", "04_ddp_launcher", "mpirun", ...
      std::istringstream name(check.name);
      for (std::string part; std::getline(name, part, '/');) {
        parts.push_back(part);
      }
      note(parts.size() > 3 ? fmt::format("{} under {}", parts[2], parts[3]) : check.name, run);
    }
    if (!spawned.empty()) {
      add("same_step", spawned,
          fmt::format("The step of {} is also that of {}, and its weights moved as far "
                      "(checked): choose by what starts your processes",
                      spawned.front()->title(), fmt::join(programs, ", ")));
    }
  }

  void say_where_ranks_pay() {
    for (const Crossover& sweep : report_.crossover) {
      Runs runs;
      std::vector<const CrossoverValue*> points;
      for (const CrossoverValue& value : sweep.values) {
        if (const Run* const run = report_.find(value.run)) {
          runs.push_back(run);
        }
        if (value.speedup && value.ci95) {
          points.push_back(&value);
        }
      }
      if (points.empty()) {
        continue;
      }
      const auto describe = [&](const CrossoverValue& point) {
        return fmt::format("{}x ({}) at {}", format_significant(point.speedup),
                           format_ends(*point.ci95), point.value);
      };
      const auto loses = [](const CrossoverValue* point) { return point->ci95->high < 1; };
      const auto wins = [](const CrossoverValue* point) { return point->ci95->low > 1; };
      const std::string ranks = format_small_number(sweep.world_size) + " ranks";
      std::string answer = fmt::format("from which {} on {} win cannot be told", sweep.axis, ranks);
      if (std::ranges::all_of(points, wins)) {
        answer = fmt::format("{} beat one process at every {} measured", ranks, sweep.axis);
      } else if (std::ranges::all_of(points, loses)) {
        answer = fmt::format("{} lose to one process at every {} measured", ranks, sweep.axis);
      } else if (sweep.crosses_at && loses(points.front()) && wins(points.back())) {
        answer = fmt::format("{} beat one process from a {} of about {} on", ranks, sweep.axis,
                             format_significant(sweep.crosses_at));
      }
      const bool has_controls = std::ranges::any_of(
          runs, [&](const Run* run) { return control_interval(report_, *run).has_value(); });
      add("crossover", runs,
          fmt::format("{}: {}, {} and {}{}", sweep.sweep, answer, describe(*points.front()),
                      describe(*points.back()),
                      has_controls ? ""
                                   : "; no equal commands were run here, so this is less sure "
                                     "than the answers above"));
    }
  }

  /// One sentence for each dataset, the quickest way first.
  void say_how_long_training_takes() {
    std::map<std::string, std::vector<const TimeToAccuracy*>> of_dataset;
    for (const TimeToAccuracy& training : report_.time_to_accuracy) {
      of_dataset[training.dataset].push_back(&training);
    }
    for (auto& [dataset, trainings] : of_dataset) {
      std::ranges::stable_sort(trainings, {}, [](const TimeToAccuracy* training) {
        return training->seconds_with_start.median.value_or(
            std::numeric_limits<double>::infinity());
      });
      const std::int64_t least_batch =
          (*std::ranges::min_element(trainings, {}, &TimeToAccuracy::global_batch))->global_batch;
      Names ways;
      for (const TimeToAccuracy* training : trainings) {
        ways.push_back(describe_training(*training, least_batch));
      }
      add("time_to_accuracy", {},
          fmt::format("{} to {}: {}", dataset, format_percent(trainings.front()->target),
                      fmt::join(ways, "; ")));
    }
  }

  /// "one process at a global batch of 32 takes 1.2 s (p10 1.1, p90 1.3) from the command, 0.9 s of
  /// it for 5 epochs".
  /// @param least_batch whose learning rate is not scaled
  static std::string describe_training(const TimeToAccuracy& training, std::int64_t least_batch) {
    const double factor =
        static_cast<double>(training.global_batch) / static_cast<double>(least_batch);
    const std::string what = fmt::format(
        "{} at a global batch of {}{}",
        training.world_size == 1 ? "one process"
                                 : format_small_number(training.world_size) + " ranks",
        training.global_batch,
        training.scale_lr && factor > 1 ? fmt::format(" and {:g}x the learning rate", factor) : "");
    if (!training.epochs) {
      return fmt::format("{} has no answer ({})", what, training.error.value_or("not searched"));
    }
    if (!training.seconds.median) {
      return fmt::format("{} gets there in {} epochs, which were not timed", what,
                         *training.epochs);
    }
    const Distribution& all = training.seconds_with_start;
    return fmt::format("{} {} {} s{} from the command, {} s of it for {} epochs", what,
                       training.world_size == 1 ? "takes" : "take", format_significant(all.median),
                       all.p10 ? fmt::format(" (p10 {}, p90 {})", format_significant(all.p10),
                                             format_significant(all.p90))
                               : "",
                       format_significant(training.seconds.median), *training.epochs);
  }

  void say_what_starts_cost() {
    std::map<std::string, std::vector<double>> startups_ms;
    for (const Run& run : report_.runs) {
      if (!run.is_control() && !run.is_peer() && run.startup_ms) {
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

  /// Only launches that communicate were slow, and by chance that would happen in less than one of
  /// twenty reports.
  static bool is_communications(const SlowLaunches& communicating, const SlowLaunches& others) {
    double by_chance = 1;  // Fisher's exact test, one-sided
    for (std::int64_t i = 0; i < communicating.k; ++i) {
      by_chance *= static_cast<double>(communicating.n - i) /
                   static_cast<double>(communicating.n + others.n - i);
    }
    return others.k == 0 && by_chance < 0.05;
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
        if (launch && (launch->others_busy_share || launch->steal_share)) {
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
              "clock, {} in the median step",
              format_significant(kSlowLaunch), communicating.k, communicating.n, others.k, others.n,
              is_communications(communicating, others)
                  ? ", so only launches that communicate show it"
                  : "",
              worst->name, worst->slow_launches.k, worst->slow_launches.n,
              format_count(worst->wall_samples_per_second),
              format_count(worst->samples_per_second)));
    }
    if (disturbed > 0) {
      add("disturbed", {},
          fmt::format("{} of {} launches ran beside other programs, or virtual machines, that took "
                      "{} or more of the processors' time, up to {}",
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
      if (slowest && slowest->excess_ci95 && slowest->excess_ci95->low >= kSlowRankExcess) {
        add("slow_rank", {&run},
            fmt::format("Rank {} of {} is slow: the busiest in {} of the steps, needing {} ({} to "
                        "{}) more than the others besides waiting",
                        slowest->rank, run.name, format_percent(slowest->share_of_steps),
                        format_percent(slowest->median_excess),
                        format_percent(slowest->excess_ci95->low),
                        format_percent(slowest->excess_ci95->high)));
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
              fmt::format("{} of {} configurations failed (see their errors)", failed.size(), rows),
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
    std::vector<std::pair<double, std::string>> widest_first;
    bool hold = true;
    for (const Comparison& comparison : report_.comparisons) {
      if (comparison.kind == "control" && comparison.ci95) {
        hold = hold && is_control_good(comparison.ci95);
        widest_first.emplace_back(
            -comparison.ci95->high / comparison.ci95->low,
            fmt::format("{} ({})", format_ends(*comparison.ci95), comparison.b));
      }
    }
    std::ranges::sort(widest_first);
    Names ranges;
    for (auto& [width, range] : widest_first) {
      ranges.push_back(std::move(range));
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
          fmt::format("Equal commands (A/A controls: a command run twice in each block) ought to "
                      "have a ratio of 1; its interval: {}. A smaller difference between two "
                      "programs is not believed; where that is more than {} the document has no "
                      "verdict",
                      joined_few(ranges), format_percent(kControlTolerance)));
    }
    const Names kinds = without_control(report_);
    if (!kinds.empty() && ranges.empty()) {
      add("no_control", {},
          "No verdict without an A/A control: no command was run twice in 6 blocks or more");
    } else if (!kinds.empty()) {
      add("no_control", {},
          fmt::format("No verdict without an A/A control, the same command once more in 6 blocks "
                      "or more: none was measured with {}",
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
               spawned_twin(run) == nullptr && run.several_processes() == several &&
               (several || run.is_baseline());
      });
      if (const Run* const best = fastest_of(runs)) {
        shown.push_back(best);
        const double over_floor = *best->step_ms.median / best->floor_ms.value_or(0);
        parts.push_back(fmt::format(
            "{} by {}{}", label(*best), *best->bound,
            over_floor <= kAllOverhead
                ? fmt::format(" (a step takes {}x the floor)", format_significant(over_floor))
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

std::vector<std::pair<std::string, std::vector<std::string>>> by_question(
    const std::vector<Conclusion>& conclusions) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const Question& question : kQuestions) {
    groups.emplace_back(question.text, std::vector<std::string>());
  }
  groups.emplace_back(kTrust, std::vector<std::string>());
  for (const Conclusion& conclusion : conclusions) {
    groups[place_of(conclusion)].second.push_back(conclusion.text);
  }
  std::erase_if(groups, [](const auto& group) { return group.second.empty(); });
  return groups;
}

}  // namespace ddp::bench
