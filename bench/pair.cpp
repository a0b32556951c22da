#include "bench/report.hpp"

namespace ddp::bench {
namespace {

/// Ratio of samples per second, a / b, in each block with launches of both.
std::vector<double> speed_ratios(const Run& a, const Run& b) {
  const double batches = static_cast<double>(a.global_batch) / static_cast<double>(b.global_batch);
  std::vector<double> ratios;
  for (const Repetition& repetition : a.repetitions) {
    const auto other = std::ranges::find(b.repetitions, repetition.block, &Repetition::block);
    if (other != b.repetitions.end()) {
      ratios.push_back(batches * other->median_ms / repetition.median_ms);
    }
  }
  return ratios;
}

void add_comparison(const char* kind, const Run& a, const Run& b, Report& report) {
  const std::vector<double> ratios = speed_ratios(a, b);
  if (const std::optional<PairedEstimate> estimate = paired_ratio(ratios)) {
    report.comparisons.push_back({.kind = kind,
                                  .a = a.name,
                                  .b = b.name,
                                  .ratio = estimate->value,
                                  .ci95 = estimate->ci95,
                                  .pairs = ratios.size()});
  }
}

void fill_times(Run& run) {
  std::vector<double> all_ms;
  std::vector<double> startups_ms;
  std::vector<double> exposed_ms;
  for (const Repetition& repetition : run.repetitions) {
    all_ms.insert(all_ms.end(), repetition.samples_ms.begin(), repetition.samples_ms.end());
    if (repetition.startup_ms) {
      startups_ms.push_back(*repetition.startup_ms);
    }
    if (repetition.no_comm_median_ms) {
      exposed_ms.push_back(repetition.median_ms - *repetition.no_comm_median_ms);
    }
  }
  run.startup_ms = median(startups_ms);
  if (run.error || !run.parity.ok) {
    return;
  }
  run.step_ms = summarize(all_ms);
  if (run.step_ms.median && *run.step_ms.median > 0) {
    run.samples_per_second = static_cast<double>(run.global_batch) / *run.step_ms.median * 1e3;
  }
  if (const std::optional<PairedEstimate> exposed = paired_difference(exposed_ms)) {
    run.exposed_comm_ms = exposed->value;
    run.exposed_comm_ci95_ms = exposed->ci95;
  }
}

/// Adds the comparison "baseline", and sets speed-up and efficiency.
void compare_with_baseline(Run& run, Report& report) {
  const Run* const baseline = report.baseline_of(run);
  if (!run.has_speed() || baseline == nullptr) {
    return;
  }
  if (&run == baseline) {
    run.speedup = 1;
  } else if (const auto estimate = paired_ratio(speed_ratios(run, *baseline))) {
    run.speedup = estimate->value;
    run.speedup_ci95 = estimate->ci95;
    if (run.kind != "control") {
      add_comparison("baseline", run, *baseline, report);
    }
  }
  if (run.speedup) {
    run.efficiency = *run.speedup / run.cores();
  }
}

void compare_within(const Workload& runs, Report& report) {
  const Run* const best = fastest_stage(runs);
  for (const Run* run : contenders(runs)) {
    if (run != best) {
      add_comparison("best", *best, *run, report);
    }
    const Run* const ranks = fastest_stage(runs, [&](const Run& other) {
      return other.is_distributed() && other.world_size == run->threads;
    });
    if (run->threads > 1 && ranks != nullptr) {
      add_comparison("threads", *ranks, *run, report);
    }
  }
}

void compare_with_peers(const Workload& runs, Report& report) {
  for (const Run* peer : runs) {
    const auto is_better = [peer](const Run* other) {  // of the peer's framework and transport
      return other->kind == "peer" && other->has_speed() && other->stage == peer->stage &&
             other->backend == peer->backend &&
             *other->samples_per_second > *peer->samples_per_second;
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
  std::erase_if(timed, [](const Run* run) { return run->kind != "stage" || !run->has_speed(); });
  Workload often = timed;
  std::erase_if(often,
                [](const Run* run) { return run->repetitions.size() < kMinPairsForInterval; });
  return often.empty() ? timed : often;
}

const Run* fastest_stage(const Workload& runs, const std::function<bool(const Run&)>& wanted) {
  Workload those = contenders(runs);
  std::erase_if(those, [&](const Run* run) { return !wanted(*run); });
  const auto speed = [](const Run* run) { return *run->samples_per_second; };
  return those.empty() ? nullptr : *std::ranges::max_element(those, {}, speed);
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
