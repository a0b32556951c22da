#include "bench/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>

#include "bench/command.hpp"
#include "bench/metrics.hpp"
#include "bench/statistics.hpp"
#include "common/base/exit_codes.hpp"

namespace ddp::bench {
namespace {

constexpr int kMaxAttempts = 3;  // at runs that end with exit code 75, "try again later"

/// What one launch gave.
struct Launch {
  Metrics metrics;
  std::string error;  ///< empty: none
  bool interrupted = false;
  bool usage_error = false;
  std::string started;
  std::optional<double> startup_ms;
  std::optional<GpuUsage> gpu;
};

Launch launch(const Entry& entry, const Length& length, const Plan& plan, Session& session) {
  // A folder of its own, empty at the start: nothing of another run can be read by mistake.
  const std::string folder = session.scratch.path() + "/run";
  Command command = {.argv = command_line(entry, plan, length, folder),
                     .timeout_s = plan.settings.timeout_s,
                     .cwd = folder};
  if (entry.run.launcher != "srun") {  // the scratch folder is on this node only
    // What torchrun leaves behind goes with it, and torch.compile finds what it compiled before.
    command.env["TMPDIR"] = session.scratch.path();
  }
  session.progress.start(entry.run.name);
  session.gpus.watch_first(entry.run.device == "cpu" ? 0 : entry.run.world_size);
  ChildResult child;
  for (int attempt = 1; attempt <= kMaxAttempts; ++attempt) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    session.gpus.take();
    child = run_child(command, session);
    if (child.interrupted || child.exit_code != static_cast<int>(ExitCode::kTransient)) {
      break;
    }
  }
  session.progress.finish();
  Launch result;
  result.interrupted = child.interrupted;
  result.started = child.started;
  if (!child.ok()) {
    result.error = child.failure();
    result.usage_error = child.exit_code == static_cast<int>(ExitCode::kUsage);
    return result;
  }
  try {
    result.metrics =
        read_metrics(folder + "/metrics.jsonl", entry.processes(), entry.run.nodes == 1);
  } catch (const Error& error) {
    result.error = error.what();
    return result;
  }
  const Metrics& metrics = result.metrics;
  if (metrics.global_batch != length.global_batch) {
    result.error = fmt::format("it trained with a global batch of {}, expected {}",
                               metrics.global_batch, length.global_batch);
  } else if (!std::isfinite(metrics.moved)) {
    result.error = "its weights are not numbers";
  } else if (std::ssize(metrics.steps_ms) < length.timed_steps) {
    result.error = fmt::format("it made {} steps, expected at least {}", metrics.steps_ms.size(),
                               length.timed_steps);
  }
  // The clock of the day may have been set meanwhile.
  const double startup_ms = metrics.first_step_unix_ms.value_or(0) - child.start_unix_ms;
  if (startup_ms > 0 && startup_ms <= child.seconds * 1e3) {
    result.startup_ms = startup_ms;
  }
  if (const auto gpu = session.gpus.take()) {
    result.gpu = GpuUsage{gpu->utilisation_percent, gpu->memory_mib};
  }
  return result;
}

void set_error(Run& run, const std::string& error, Session& session) {
  run.error = error;
  session.progress.note(run.name + ": " + error);
}

void judge_parity(Run& run, const Launch& own, const Launch& reference, Session& session) {
  if (own.interrupted) {
    run.error = "interrupted before its weights were compared";
  } else if (!own.error.empty()) {
    set_error(run, own.error, session);
  } else if (!reference.error.empty()) {
    set_error(run, "no reference: " + reference.error, session);
  } else {
    run.parity.moved = own.metrics.moved;
    run.parity.reference_moved = reference.metrics.moved;
    run.parity.ok = parity_holds(own.metrics.moved, reference.metrics.moved);
    if (!run.parity.ok) {
      set_error(run,
                fmt::format("parity: moved {:.7g}, stage 01 moved {:.7g}", own.metrics.moved,
                            reference.metrics.moved),
                session);
    }
  }
}

/// @throws UsageError if stage 01 refuses the options
void check_parity(const Plan& plan, Session& session, std::vector<Run>& runs) {
  std::map<std::string, Launch> references;  // by model and scaling
  std::vector<std::size_t> order;
  for (const bool baselines : {true, false}) {
    for (std::size_t i = 0; i < plan.entries.size(); ++i) {
      const Entry& entry = plan.entries[i];
      if (entry.original.empty() && entry.run.is_baseline() == baselines) {
        order.push_back(i);
      }
    }
  }
  for (const std::size_t i : order) {
    const Entry& entry = plan.entries[i];
    const Launch own = launch(entry, parity_length(entry), plan, session);
    const std::string key = entry.run.model + "/" + entry.run.scaling;
    if (entry.run.is_baseline()) {
      if (own.usage_error) {
        throw UsageError(std::string(kBaseline) + " refuses the options: " + own.error);
      }
      references[key] = own;
    }
    judge_parity(runs[i], own, references.at(key), session);
  }
  // An equal command has equal weights.
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    for (const Run& original : runs) {
      if (original.name == plan.entries[i].original) {
        runs[i].parity = original.parity;
        runs[i].error = original.error;
      }
    }
  }
}

/// The timed steps are the last ones: the same number in each run, whatever came before.
Repetition make_repetition(const Launch& launched, int block, std::int64_t timed_steps) {
  const std::vector<double>& steps_ms = launched.metrics.steps_ms;
  Repetition repetition;
  repetition.block = block;
  repetition.started = launched.started;
  repetition.samples_ms.assign(steps_ms.end() - timed_steps, steps_ms.end());
  repetition.median_ms = median(repetition.samples_ms);
  repetition.startup_ms = launched.startup_ms;
  return repetition;
}

void time_once(const Entry& entry, int block, const Plan& plan, Session& session, Run& run) {
  const Length length = timed_length(entry, plan.settings);
  const Launch launched = launch(entry, length, plan, session);
  if (launched.interrupted) {
    return;
  }
  if (!launched.error.empty()) {
    set_error(run, launched.error, session);
    return;
  }
  run.repetitions.push_back(make_repetition(launched, block, length.timed_steps));
  if (launched.metrics.peak_rss_mib) {
    run.peak_rss_mib = std::max(run.peak_rss_mib.value_or(0), *launched.metrics.peak_rss_mib);
  }
  if (launched.gpu) {
    const auto launches = static_cast<double>(run.repetitions.size());
    GpuUsage& mean = run.gpu ? *run.gpu : run.gpu.emplace();
    mean.utilisation_percent +=
        (launched.gpu->utilisation_percent - mean.utilisation_percent) / launches;
    mean.memory_mib += (launched.gpu->memory_mib - mean.memory_mib) / launches;
  }
}

/// What a run without communication took is a fact about all that compute the same.
void hand_over_without_communication(const Plan& plan, std::vector<Run>& runs) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (Run& run : runs) {
      if (plan.entries[i].role != Role::kNoCommunication || !compute_the_same(run, runs[i])) {
        continue;
      }
      for (const Repetition& without : runs[i].repetitions) {
        for (Repetition& repetition : run.repetitions) {
          if (repetition.block == without.block) {
            repetition.no_comm_median_ms = without.median_ms;
          }
        }
      }
    }
  }
}

}  // namespace

int count_launches(const Plan& plan) {
  int launches = 0;
  for (const Entry& entry : plan.entries) {
    launches += entry.repetitions + (entry.original.empty() ? 1 : 0);
  }
  return launches;
}

void run_plan(const Plan& plan, Session& session, Report& report) {
  std::vector<Run> runs;  // as plan.entries
  std::ranges::transform(plan.entries, std::back_inserter(runs), &Entry::run);
  check_parity(plan, session, runs);
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 generator(plan.settings.seed);
  const int blocks = std::ranges::max(plan.entries, {}, &Entry::repetitions).repetitions;
  for (int block = 0; block < blocks; ++block) {
    std::ranges::shuffle(order, generator);
    for (const std::size_t i : order) {
      if (block < plan.entries[i].repetitions && !runs[i].error &&
          !session.interrupts.requested()) {
        time_once(plan.entries[i], block, plan, session, runs[i]);
      }
    }
  }
  hand_over_without_communication(plan, runs);
  report.partial = session.interrupts.requested();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (plan.entries[i].role == Role::kNoCommunication) {
      const Run* const original = report.find(plan.entries[i].original);  // which came before it
      if (runs[i].error && !original->error) {
        report.not_run.push_back({runs[i].name, *runs[i].error});
      }
      continue;
    }
    if (runs[i].repetitions.empty() && !runs[i].error) {
      runs[i].error = "interrupted before it was timed";
    }
    report.runs.push_back(std::move(runs[i]));
  }
}

}  // namespace ddp::bench
