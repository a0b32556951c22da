#include "bench/report.hpp"
#include "bench/tables.hpp"

namespace ddp::bench {
namespace {

/// Adds the ratio of the rates, a / b, in the blocks with launches of both. A single launch is
/// compared with nothing.
/// @return the comparison; nullptr for none
const Comparison* add_comparison(const char* kind, const Run& a, const Run& b, Report& report) {
  std::vector<double> ratios;
  for (const Repetition& repetition : a.repetitions) {
    const auto other = std::ranges::find(b.repetitions, repetition.block, &Repetition::block);
    if (other != b.repetitions.end()) {
      ratios.push_back(a.work() / b.work() * other->median_ms / repetition.median_ms);
    }
  }
  const std::optional<PairedEstimate> estimate = paired_ratio(ratios);
  if (!estimate || ratios.size() < 2 || !same_unit(a, b)) {
    return nullptr;
  }
  Comparison& made = report.comparisons.emplace_back();
  made.kind = kind;
  made.a = a.name;
  made.b = b.name;
  made.ratio = estimate->value;
  made.ci95 = estimate->ci95;
  made.pairs = ratios.size();
  return &made;
}

void fill_times(Run& run) {
  std::vector<double> all_ms;
  std::vector<double> startups_ms;
  std::vector<double> exposed_ms;
  for (const Repetition& repetition : run.repetitions) {
    const std::vector<double> whole_run = {repetition.median_ms};
    const auto& times_ms = run.timed == "run" ? whole_run : repetition.samples_ms;
    all_ms.insert(all_ms.end(), times_ms.begin(), times_ms.end());
    if (repetition.startup_ms) {
      startups_ms.push_back(*repetition.startup_ms);
    }
    if (repetition.no_comm_median_ms) {
      exposed_ms.push_back(repetition.median_ms - *repetition.no_comm_median_ms);
    }
  }
  run.startup_ms = median(startups_ms);
  if (!run.is_right()) {
    return;
  }
  run.step_ms = summarize(all_ms);
  if (run.has_speed() && run.global_batch && run.timed == "step") {
    run.samples_per_second = run.rate() * 1e3;
  }
  if (const std::optional<PairedEstimate> exposed = paired_difference(exposed_ms)) {
    run.exposed_comm_ms = exposed->value;
    run.exposed_comm_ci95_ms = exposed->ci95;
  }
}

/// Adds the comparison "baseline", and sets speed-up and efficiency.
void compare_with_baseline(Run& run, Report& report) {
  const Run* const baseline = report.baseline_of(run);
  if (!run.has_speed() || baseline == nullptr || run.kind == "control") {
    return;
  }
  if (&run == baseline) {
    run.speedup = run.repetitions.size() < 2 ? std::nullopt : std::optional(1.0);
  } else if (const Comparison* const found = add_comparison("baseline", run, *baseline, report)) {
    run.speedup = found->ratio;
    run.speedup_ci95 = found->ci95;
  }
  if (run.speedup) {
    run.quotient = run.rate() / baseline->rate();
    if (run.kind != "peer" && has_autograd(run)) {  // else more than the cores differs
      run.efficiency = *run.speedup * baseline->cores() / run.cores();
    }
  }
}

void compare_within(const Workload& runs, Report& report) {
  const Run* const best = fastest_stage(runs);
  for (const Run* run : contenders(runs)) {
    if (run != best) {
      add_comparison("best", *best, *run, report);
    }
    const Run* const ranks = fastest_stage(runs, [&](const Run& other) {
      return other.is_distributed() && other.cores() == run->threads && other.world_size > 1 &&
             has_autograd(other);
    });
    if (run->threads > 1 && run->world_size == 1 && ranks != nullptr) {
      add_comparison("threads", *ranks, *run, report);
    }
  }
}

void compare_with_peers(const Workload& runs, Report& report) {
  for (const Run* peer : runs) {
    const auto is_better = [peer](const Run* other) {  // of the peer's framework and transport
      return other->kind == "peer" && other->has_speed() && other->stage == peer->stage &&
             other->backend == peer->backend && other->rate() > peer->rate();
    };
    if (peer->kind != "peer" || !peer->has_speed() || std::ranges::any_of(runs, is_better)) {
      continue;
    }
    const auto does_the_same = [&](const Run& run) {
      return run.cores() == peer->cores() && run.global_batch == peer->global_batch;
    };
    const Run* const ours = fastest_stage(runs, does_the_same);
    const Run* const over_the_same = fastest_stage(
        runs, [&](const Run& run) { return does_the_same(run) && run.backend == peer->backend; });
    if (ours != nullptr) {
      add_comparison("peer", *ours, *peer, report);
    }
    if (over_the_same != nullptr && over_the_same != ours) {
      add_comparison("peer", *over_the_same, *peer, report);
    }
  }
}

}  // namespace

std::vector<Workload> workloads(const Report& report) {
  std::vector<Workload> all;
  for (const Run& run : report.runs) {
    if (run.kind == "control") {
      continue;
    }
    const auto found = std::ranges::find_if(
        all, [&](const Workload& runs) { return same_work(*runs.front(), run); });
    (found == all.end() ? all.emplace_back() : *found).push_back(&run);
  }
  return all;
}

Workload contenders(const Workload& runs) {
  Workload timed = runs;
  std::erase_if(timed, [](const Run* run) { return run->kind == "peer" || !run->has_speed(); });
  std::erase_if(timed, [first = timed.empty() ? nullptr : timed.front()](const Run* run) {
    return !same_unit(*run, *first);
  });
  Workload often = timed;
  std::erase_if(often,
                [](const Run* run) { return run->repetitions.size() < kMinPairsForInterval; });
  return often.empty() ? timed : often;
}

const Run* fastest_stage(const Workload& runs, const std::function<bool(const Run&)>& wanted) {
  Workload those = contenders(runs);
  std::erase_if(those, [&](const Run* run) { return !wanted(*run); });
  return those.empty() ? nullptr : *std::ranges::max_element(those, {}, &Run::rate);
}

bool has_autograd(const Run& run) {
  static const auto rows = table_rows(kStagesList);
  const std::string source = run.stage + "/" + run.variant;
  return std::ranges::none_of(rows, [&](const std::vector<std::string>& cells) {
    const std::vector<std::string> lacks = cell_parts(cells.at(4));
    return cells.at(0) == source && std::ranges::find(lacks, "autograd") != lacks.end();
  });
}

void pair(Report& report) {
  report.comparisons.clear();
  std::ranges::for_each(report.runs, fill_times);
  for (const Run& run : report.runs) {
    const Run* const original =  // "NAME" for "NAME/control"
        run.kind == "control" ? report.find(run.name.substr(0, run.name.rfind('/'))) : nullptr;
    if (original != nullptr && run.has_speed() && original->has_speed()) {
      add_comparison("control", run, *original, report);
    }
  }
  for (Run& run : report.runs) {
    compare_with_baseline(run, report);
  }
  for (const Workload& runs : workloads(report)) {
    compare_within(runs, report);
    compare_with_peers(runs, report);
  }
}

}  // namespace ddp::bench
