#include "bench/run/machine_limits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "bench/run/child_process.hpp"
#include "bench/run/measurement.hpp"
#include "bench/run/micro_command.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"

namespace ddp::bench {
namespace {

constexpr int kPasses = 5;  // over the sizes of the sweep

bool exchanges_gradients(const Result& result) {
  const Configuration& configuration = result.configuration;
  return result.error.empty() && configuration.communicates() && configuration.is_timed() &&
         configuration.role != Role::kPeer;
}

/// The same buckets, the same name: "192", "4096_8192".
std::string step_name(const Result& result) {
  return fmt::format("{:.0f}", fmt::join(result.bucket_bytes, "_"));
}

std::vector<MicroRun> make_runs(const Plan& plan, const Measurements& measurements) {
  std::set<std::pair<int, int>> nodes_and_sizes;
  // Those that agree in backend, nodes and world size share a run.
  std::map<std::tuple<std::string, int, int>, decltype(MicroRun::steps)> steps;
  for (const Result& result : measurements.results) {
    const Configuration& configuration = result.configuration;
    if (result.error.empty() && configuration.is_timed()) {
      nodes_and_sizes.emplace(configuration.nodes, configuration.world_size);
    }
    if (exchanges_gradients(result)) {
      auto& own_steps =
          steps[{configuration.backend, configuration.nodes, configuration.world_size}];
      if (!result.bucket_bytes.empty()) {
        own_steps[step_name(result)] = {result.bucket_bytes.begin(), result.bucket_bytes.end()};
      }
    }
  }
  std::vector<MicroRun> runs;
  const auto add = [&](const std::string& suite, int nodes, int world_size) -> MicroRun& {
    return runs.emplace_back(MicroRun{.suite = suite,
                                      .world_size = world_size,
                                      .nodes = nodes,
                                      .device = plan.settings.device,
                                      .min_seconds = plan.settings.quick ? 0.05 : 0.1,
                                      .timeout_s = plan.settings.timeout_s});
  };
  for (const auto& [nodes, world_size] : nodes_and_sizes) {
    add("limits", nodes, world_size);
  }
  for (const auto& [key, own_steps] : steps) {
    const auto& [backend, nodes, world_size] = key;
    MicroRun& run = add("all_reduce", nodes, world_size);
    run.backends = {backend};
    run.steps = own_steps;
    // A machine that is slow for a while would be slow at a few sizes in a row. So each is measured
    // several times, far apart, and it shows where these differ.
    run.passes = kPasses;
    run.min_seconds = *run.min_seconds / kPasses;
  }
  if (plan.settings.micro) {
    add("pieces", 1, 1).min_seconds = plan.settings.quick ? 0.05 : 0.2;
  }
  return runs;
}

double seconds_of(const MicroRun& run) {
  return run.suite == "limits" ? 3 : run.suite == "pieces" ? 20 : 6;
}

/// @throws Error if it measured nothing
MicroResults run_micro(const MicroRun& run, const Plan& plan, Session& session) {
  const std::string out = session.scratch.path() + "/micro.json";
  std::filesystem::remove(out);
  Command command = {.argv = micro_command(plan.program_path("bench_micro"), run, out),
                     .timeout_s = plan.settings.timeout_s + 4 * seconds_of(run),
                     .cwd = session.scratch.path()};
  if (run.nodes > 1 || run.backends == std::vector<std::string>{"mpi"}) {
    // It starts its ranks itself, except MPI's and those of other nodes.
    Configuration ranks;
    ranks.launcher = run.nodes > 1 ? "srun" : "mpirun";
    ranks.nodes = run.nodes;
    ranks.world_size = *run.world_size;
    const std::vector<std::string> launcher = launcher_command(ranks, plan);
    command.argv.insert(command.argv.begin(), launcher.begin(), launcher.end());
  }
  const ChildResult child = run_child(command, session);
  session.progress.finish_run(child.seconds);
  if (child.interrupted) {
    return {};
  }
  if (!child.ok()) {
    throw Error(ExitCode::kTrainingFailed, describe_failure(child, command.timeout_s));
  }
  return read_micro_results(out);
}

/// Hands what was measured to the results that have these buckets.
void hand_over(const MicroRun& run, const MicroResults& measured, Measurements& measurements) {
  for (Result& result : measurements.results) {
    for (const StepAllReduce& step : measured.steps) {
      if (exchanges_gradients(result) && step.backend == result.configuration.backend &&
          run.nodes == result.configuration.nodes &&
          step.world_size == result.configuration.world_size && step.name == step_name(result) &&
          step.time_us.median) {
        result.alone_ms = *step.time_us.median / 1e3;
      }
    }
  }
}

/// Once more, after the timed runs; with --quick none.
std::vector<MicroRun> runs_of_limits_again(const Plan& plan, const Measurements& measurements) {
  const bool is_wanted = !measurements.micro.limits.empty() && !plan.settings.quick;
  std::vector<MicroRun> runs = is_wanted ? make_runs(plan, measurements) : std::vector<MicroRun>();
  std::erase_if(runs, [](const MicroRun& run) { return run.suite != "limits"; });
  return runs;
}

double seconds_of_all(const std::vector<MicroRun>& runs) {
  return std::transform_reduce(runs.begin(), runs.end(), 0.0, std::plus<>(), seconds_of);
}

/// @param later_s what follows after them
void measure_all(const std::vector<MicroRun>& runs, double later_s, Plan& plan, Session& session,
                 Measurements& measurements) {
  session.progress.begin("limits", runs.size(), seconds_of_all(runs), later_s);
  for (const MicroRun& run : runs) {
    if (session.interrupts.requested()) {
      break;
    }
    std::string label = run.suite;
    label += run.nodes > 1 ? fmt::format("/nodes:{}", run.nodes) : "";
    label += fmt::format("/ranks:{}", *run.world_size);
    label += run.backends.empty() ? "" : "/" + run.backends.front();
    session.progress.start_run(label, seconds_of(run));
    try {
      MicroResults measured = run_micro(run, plan, session);
      for (AllReduceSample& sample : measured.all_reduce) {
        sample.nodes = run.nodes;
      }
      hand_over(run, measured, measurements);
      measurements.micro.append(measured);
      for (const std::string& error : measured.errors) {
        plan.not_run.push_back({label, error});
      }
    } catch (const Error& error) {
      plan.not_run.push_back({label, error.what()});
      session.progress.note(label + ": " + error.what());
    }
  }
  session.progress.end();
  measurements.partial = measurements.partial || session.interrupts.requested();
}

}  // namespace

void measure_limits(Plan& plan, Session& session, Measurements& measurements) {
  if (!is_executable(plan.program_path("bench_micro"))) {
    plan.not_run.push_back({"limits, all-reduce sweep and predictions",
                            "no bench_micro in " + plan.settings.stage_dir});
    return;
  }
  double later_s = 0;
  for (const Result& result : measurements.results) {
    later_s += result.error.empty()
                   ? result.configuration.repetitions * (result.overhead_s + kTimedStepsSeconds)
                   : 0;
  }
  measure_all(make_runs(plan, measurements), later_s, plan, session, measurements);
}

double seconds_of_limits_again(const Plan& plan, const Measurements& measurements) {
  return seconds_of_all(runs_of_limits_again(plan, measurements));
}

void measure_limits_again(double later_s, Plan& plan, Session& session,
                          Measurements& measurements) {
  const std::vector<MicroRun> runs = runs_of_limits_again(plan, measurements);
  if (!runs.empty() && !measurements.partial) {
    measure_all(runs, later_s, plan, session, measurements);
  }
}

}  // namespace ddp::bench
