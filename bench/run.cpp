#include "bench/run.hpp"

#include <filesystem>
#include <numeric>
#include <random>

#include "bench/command.hpp"
#include "bench/launchers.hpp"
#include "bench/metrics.hpp"

namespace ddp::bench {
namespace {

struct Outcome {
  Metrics metrics;
  std::string error;  ///< empty: none
  bool interrupted = false;
  Repetition launch;  ///< when it started, and its start-up
  std::optional<GpuReadings> gpu;
};

/// Runs the command, up to three times while it ends with exit code 75, "try again later". The
/// folder is empty before each attempt, so that files of another run cannot be read by mistake.
ChildResult run_command(const PlannedRun& planned, const Length& length, const Plan& plan,
                        const std::string& folder, Session& session) {
  Command command = {.argv = command_line(planned, plan, length, folder),
                     .timeout_s = plan.settings.timeout_s,
                     .cwd = folder};
  if (!find_starter(planned.run.launcher).spans_nodes) {
    // Files that torchrun leaves behind are deleted, and torch.compile finds its earlier results.
    command.env["TMPDIR"] = session.scratch.path();
  }
  session.progress.start(planned.run.name);
  session.gpus.watch(0, planned.run.device == "cpu" ? 0 : planned.run.world_size);
  ChildResult child;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    session.gpus.take();
    child = run_child(command, session);
    if (child.interrupted || child.exit_code != static_cast<int>(ExitCode::kTransient)) {
      break;
    }
  }
  session.progress.finish();
  return child;
}

/// Reason why the metrics are not of the training that the program was told; empty for none.
std::string mismatch(const Metrics& metrics, const Length& length) {
  if (metrics.global_batch != length.global_batch) {
    return fmt::format("it trained with a global batch of {}, expected {}", metrics.global_batch,
                       length.global_batch);
  }
  if (std::ssize(metrics.steps_ms) < length.timed_steps) {
    return fmt::format("it made {} steps, expected at least {}", metrics.steps_ms.size(),
                       length.timed_steps);
  }
  return std::isfinite(metrics.moved) ? "" : "its weights are not numbers";
}

Outcome run_once(const PlannedRun& planned, const Length& length, const Plan& plan,
                 Session& session) {
  const std::string folder = session.scratch.path() + "/run";
  const ChildResult child = run_command(planned, length, plan, folder, session);
  Outcome result;
  result.interrupted = child.interrupted;
  const auto started = static_cast<std::time_t>(child.start_unix_ms / 1e3);
  char utc[32] = "";
  std::strftime(utc, sizeof(utc), "%FT%TZ", std::gmtime(&started));
  result.launch.started = utc;
  if (!child.ok()) {
    result.error = child.failure();
    return result;
  }
  try {
    result.metrics =
        read_metrics(folder + "/metrics.jsonl", planned.processes(), planned.run.nodes == 1);
    result.error = mismatch(result.metrics, length);
    const double startup_ms = result.metrics.first_step_unix_ms - child.start_unix_ms;
    if (startup_ms > 0 && startup_ms <= child.seconds * 1e3) {  // else the wall clock was set
      result.launch.startup_ms = startup_ms;
    }
  } catch (const Error& error) {
    result.error = error.what();
  }
  result.gpu = session.gpus.take();
  return result;
}

void set_error(Run& run, const std::string& error, Session& session) {
  run.error = error;
  session.progress.note(run.name + ": " + error);
}

void judge_parity(Run& run, const Outcome& own, const Outcome& reference, Session& session) {
  if (own.interrupted) {
    run.error = "interrupted before its weights were compared";
    return;
  }
  if (!own.error.empty() || !reference.error.empty()) {
    set_error(run, own.error.empty() ? "no reference: " + reference.error : own.error, session);
    return;
  }
  const double moved = own.metrics.moved;
  const double expected = reference.metrics.moved;
  run.parity = {.moved = moved, .reference_moved = expected, .ok = parity_holds(moved, expected)};
  if (!run.parity.ok) {
    set_error(run, fmt::format("parity: moved {:.7g}, stage 01 moved {:.7g}", moved, expected),
              session);
  }
}

void check_parity(const Plan& plan, Session& session, std::vector<Run>& runs) {
  std::map<std::string, Outcome> references;  // by model and scaling
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& planned = plan.runs[i];
    if (!planned.original.empty()) {  // an equal command has equal weights
      const Run& original = *std::ranges::find(runs, planned.original, &Run::name);
      runs[i].parity = original.parity;
      runs[i].error = original.error;
      continue;
    }
    const Outcome own = run_once(planned, parity_length(planned), plan, session);
    Outcome& reference = references[planned.run.model + "/" + planned.run.scaling];
    if (planned.run.is_baseline()) {
      reference = own;
    }
    judge_parity(runs[i], own, reference, session);
  }
}

void time_once(const PlannedRun& planned, int block, const Plan& plan, Session& session, Run& run) {
  const Length length = timed_length(planned, plan.settings);
  const Outcome outcome = run_once(planned, length, plan, session);
  if (outcome.interrupted) {
    return;
  }
  if (!outcome.error.empty()) {
    set_error(run, outcome.error, session);
    return;
  }
  const std::vector<double>& steps_ms = outcome.metrics.steps_ms;
  Repetition& repetition = run.repetitions.emplace_back(outcome.launch);
  repetition.block = block;
  repetition.samples_ms.assign(steps_ms.end() - length.timed_steps, steps_ms.end());
  repetition.median_ms = median(repetition.samples_ms).value();
  run.peak_rss_mib = std::max(run.peak_rss_mib.value_or(0), outcome.metrics.peak_rss_mib);
  run.gpu = outcome.gpu;
}

/// Copies the times of runs without communication to all runs with the same computation.
void hand_over_without_communication(std::vector<Run>& runs) {
  for (const Run& without : runs) {
    for (Run& run : runs) {
      if (without.kind != kNoCommunication || !compute_the_same(run, without)) {
        continue;
      }
      for (Repetition& own : run.repetitions) {
        const auto other = std::ranges::find(without.repetitions, own.block, &Repetition::block);
        if (other != without.repetitions.end()) {
          own.no_comm_median_ms = other->median_ms;
        }
      }
    }
  }
}

}  // namespace

int count_launches(const Plan& plan) {
  return std::accumulate(plan.runs.begin(), plan.runs.end(), 0, [](int sum, const auto& planned) {
    return sum + planned.repetitions + (planned.original.empty() ? 1 : 0);
  });
}

void run_plan(const Plan& plan, Session& session, Report& report) {
  std::vector<Run> runs;  // in the order of plan.runs
  std::ranges::transform(plan.runs, std::back_inserter(runs), &PlannedRun::run);
  check_parity(plan, session, runs);
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937_64 generator(plan.settings.seed);
  const int blocks = std::ranges::max(plan.runs, {}, &PlannedRun::repetitions).repetitions;
  for (int block = 0; block < blocks; ++block) {
    std::ranges::shuffle(order, generator);
    for (const std::size_t i : order) {
      if (block < plan.runs[i].repetitions && !runs[i].error && !session.interrupted) {
        time_once(plan.runs[i], block, plan, session, runs[i]);
      }
    }
  }
  hand_over_without_communication(runs);
  report.partial = session.interrupted;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].kind == kNoCommunication) {
      if (runs[i].error && !report.find(plan.runs[i].original)->error) {  // it comes before
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
