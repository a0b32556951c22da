#include "bench/run.hpp"

#include <filesystem>
#include <numeric>
#include <random>

#include "bench/command.hpp"
#include "bench/launchers.hpp"
#include "bench/metrics.hpp"

namespace ddp::bench {
namespace {

/// The first steps of a program touch memory and open connections, as those of the stages.
constexpr std::int64_t kMostWarmupSteps = 20;

struct Outcome {
  Metrics metrics;  ///< without steps: a program that writes none
  double run_ms = 0;  ///< from its start to its end
  bool timed_out = false;
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
                     .cwd = planned.is_program() ? "" : folder,
                     .is_users = planned.is_program()};
  if (planned.is_program()) {
    command.env = program_variables(planned.run, folder);
  }
  if (!find_starter(planned.run.launcher).spans_nodes) {
    // Files that torchrun leaves behind are deleted.
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
    if (child.interrupted || planned.is_program() ||
        child.exit_code != static_cast<int>(ExitCode::kTransient)) {
      break;
    }
  }
  session.progress.finish();
  return child;
}

/// Reason why the metrics are not of the training that the program was told; empty for none.
std::string mismatch(const Metrics& metrics, const Length& length) {
  if (!metrics.has_summary || !metrics.global_batch) {
    return "metrics: the last line is no summary: the program was cut off";
  }
  if (metrics.global_batch != length.global_batch) {
    return fmt::format("it trained with a global batch of {}, expected {}", *metrics.global_batch,
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
  const std::string file = folder + "/metrics.jsonl";
  Outcome result;
  result.interrupted = child.interrupted;
  result.run_ms = child.seconds * 1e3;
  result.timed_out = child.timed_out;
  char utc[32] = "";
  std::strftime(utc, sizeof(utc), "%FT%TZ", std::gmtime(&child.started));
  result.launch.started = utc;
  if (!child.ok()) {
    result.error = child.failure();
    return result;
  }
  try {
    if (!planned.is_program() || std::filesystem::exists(file)) {
      result.metrics =
          read_metrics(file, planned.processes(), planned.run.nodes == 1 ? result.run_ms : 0);
    }
    result.error = planned.is_program() ? "" : mismatch(result.metrics, length);
    if (result.metrics.first_end_ns) {
      const double startup_ms =
          static_cast<double>(*result.metrics.first_end_ns - child.start_ns) * 1e-6;
      if (startup_ms > 0 && startup_ms <= result.run_ms) {  // else it is another clock
        result.launch.startup_ms = startup_ms;
      }
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
  if (!reference.error.empty()) {
    set_error(run, "no reference: " + reference.error, session);
    return;
  }
  const double moved = own.metrics.moved;
  const double expected = reference.metrics.moved;
  run.parity = {.moved = moved, .reference_moved = expected, .ok = parity_holds(moved, expected)};
  if (!*run.parity.ok) {
    set_error(run, fmt::format("parity: moved {:.7g}, stage 01 moved {:.7g}", moved, expected),
              session);
  }
}

/// The first run of a model and scaling: stage 01, or the one process of a program.
struct Reference {
  Outcome outcome;
  PlannedRun planned;
  std::map<int, Outcome> with_named_ranks = {};  ///< the same process, with another {ranks}
};

/// Compares the losses of a program with those of one process, if both have the same batch.
void judge_losses(const PlannedRun& planned, const Outcome& own, Reference& first, const Plan& plan,
                  Session& session, Run& run) {
  const auto batch = [](const Outcome& outcome) { return outcome.metrics.global_batch; };
  run.timed = own.metrics.steps_ms.empty() ? "run" : "step";
  run.global_batch = batch(own);
  if (run.name == first.planned.run.name) {
    return;  // it is the reference
  }
  const bool may_match = first.outcome.error.empty() && batch(own) &&
                         batch(own) != batch(first.outcome) &&
                         run.command->find("{ranks}") != std::string::npos;
  const int named_ranks = planned.named_ranks;
  if (may_match && !first.with_named_ranks.contains(named_ranks)) {
    PlannedRun same_batch = first.planned;  // as "--global-batch $((32 * {ranks}))" wants it
    same_batch.named_ranks = named_ranks;
    first.with_named_ranks[named_ranks] = run_once(same_batch, {}, plan, session);
  }
  const Outcome& reference = may_match ? first.with_named_ranks[named_ranks] : first.outcome;
  const auto samples = [&](const Outcome& outcome) {
    return batch(outcome) ? std::to_string(*batch(outcome)) : "unknown";
  };
  std::string& unchecked = run.parity.unchecked.emplace();
  if (own.metrics.losses.empty()) {
    unchecked = fmt::format("{} logs no {}", run.stage,
                            run.timed == "run" ? "steps, so these are whole runs" : "losses");
  } else if (!reference.error.empty() || reference.interrupted) {
    unchecked = "one process failed";
  } else if (!batch(own) && run.scaling == "weak" && run.world_size > 1) {
    unchecked = run.stage + " logs no samples, so that its batches may differ";
  } else if (batch(own) != batch(reference)) {
    unchecked = fmt::format("{} ranks take {} samples in a step, one process {}", run.world_size,
                            samples(own), samples(reference));
  } else if (reference.metrics.losses.empty()) {
    unchecked = "one process logs no losses";
  } else {
    const auto [largest, step] = compare_losses(own.metrics.losses, reference.metrics.losses);
    run.parity = {.loss_difference = largest, .ok = largest <= kLossTolerance};
    if (!*run.parity.ok) {
      set_error(run,
                fmt::format("parity: loss {:.7g} in step {}, with one process {:.7g}",
                            own.metrics.losses[step], step, reference.metrics.losses[step]),
                session);
    }
  }
}

void check_parity(const Plan& plan, Session& session, std::vector<Run>& runs) {
  std::map<std::string, Reference> references;  // by model and scaling
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& planned = plan.runs[i];
    if (!planned.original.empty()) {  // an equal command has equal weights
      const Run& original = *std::ranges::find(runs, planned.original, &Run::name);
      runs[i].parity = original.parity;
      runs[i].timed = original.timed;
      runs[i].global_batch = original.global_batch;
      runs[i].error = original.error;
      continue;
    }
    const std::string work = planned.run.model + "/" + planned.run.scaling;
    if (planned.is_program() && references.contains(work) && references[work].outcome.timed_out) {
      runs[i].error = "not started, because one process did not end: see --timeout";
      continue;
    }
    const Length length = planned.is_program() ? Length() : parity_length(planned);
    const Outcome own = run_once(planned, length, plan, session);
    Reference& reference = references.try_emplace(work, Reference{own, planned}).first->second;
    if (own.interrupted) {
      runs[i].error = "interrupted before it was compared";
    } else if (!own.error.empty()) {
      set_error(runs[i], own.error, session);
    } else if (planned.is_program()) {
      judge_losses(planned, own, reference, plan, session, runs[i]);
    } else {
      judge_parity(runs[i], own, reference.outcome, session);
    }
  }
}

void time_once(const PlannedRun& planned, int block, const Plan& plan, Session& session, Run& run) {
  Length length = timed_length(planned, plan.settings);
  Outcome outcome = run_once(planned, length, plan, session);
  if (outcome.interrupted) {
    return;
  }
  const std::vector<double>& steps_ms = outcome.metrics.steps_ms;
  if (planned.is_program() && outcome.error.empty()) {
    const std::int64_t steps = std::ssize(steps_ms);
    length.timed_steps =
        plan.settings.steps.value_or(steps - std::min(kMostWarmupSteps, steps / 2));
    if (steps_ms.empty() != (run.timed == "run")) {
      outcome.error = "it logged steps in some of its launches only";
    } else if (outcome.metrics.global_batch != run.global_batch) {
      outcome.error = "its launches took different numbers of samples in a step";
    } else if (run.timed == "step" && steps < length.timed_steps) {
      outcome.error =
          fmt::format("it made {} steps, expected at least {}", steps, length.timed_steps);
    }
  }
  if (!outcome.error.empty()) {
    set_error(run, outcome.error, session);
    return;
  }
  Repetition& repetition = run.repetitions.emplace_back(outcome.launch);
  repetition.block = block;
  if (run.timed == "step") {
    repetition.samples_ms.assign(steps_ms.end() - length.timed_steps, steps_ms.end());
  }
  repetition.median_ms = median(repetition.samples_ms).value_or(outcome.run_ms);
  if (outcome.metrics.peak_rss_mib) {
    run.peak_rss_mib = std::max(run.peak_rss_mib.value_or(0), *outcome.metrics.peak_rss_mib);
  }
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
