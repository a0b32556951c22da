#include "bench/run/machine_limits.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "bench/run/child_process.hpp"
#include "bench/run/micro_command.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"

namespace ddp::bench {
namespace {

/// Results by who all-reduces what: those that agree in backend and world size share a measurement.
using Traffic = std::map<std::pair<std::string, int>, std::vector<Result*>>;

Traffic traffic_of(Measurements& measurements) {
  Traffic traffic;
  for (Result& result : measurements.results) {
    const Configuration& configuration = result.configuration;
    if (result.error.empty() && configuration.communicates() && configuration.role != Role::kPeer) {
      traffic[{configuration.backend, configuration.world_size}].push_back(&result);
    }
  }
  return traffic;
}

/// The same buckets, the same name: "192", "4096_8192".
std::string step_name(const Result& result) {
  return fmt::format("{:.0f}", fmt::join(result.bucket_bytes, "_"));
}

std::vector<MicroRun::Step> steps_of(const std::vector<Result*>& results) {
  std::map<std::string, MicroRun::Step> distinct;
  for (const Result* result : results) {
    if (!result->bucket_bytes.empty()) {
      const std::string name = step_name(*result);
      distinct[name] = {name, {result->bucket_bytes.begin(), result->bucket_bytes.end()}};
    }
  }
  std::vector<MicroRun::Step> steps;
  for (const auto& [name, step] : distinct) {
    steps.push_back(step);
  }
  return steps;
}

std::vector<MicroRun> make_runs(const Settings& settings, const Plan& plan,
                                const Measurements& measurements, const Traffic& traffic) {
  std::vector<MicroRun> runs;
  const auto add = [&](const std::string& suite, int world_size) -> MicroRun& {
    return runs.emplace_back(MicroRun{.suite = suite,
                                      .world_size = world_size,
                                      .device = plan.device,
                                      .min_seconds = settings.quick ? 0.05 : 0.2,
                                      .timeout_s = settings.timeout_s});
  };
  std::set<int> world_sizes;
  for (const Result& result : measurements.results) {
    if (result.error.empty()) {
      world_sizes.insert(result.configuration.world_size);
    }
  }
  for (const int world_size : world_sizes) {
    add("limits", world_size);
  }
  for (const auto& [backend_and_size, results] : traffic) {
    MicroRun& run = add("all_reduce", backend_and_size.second);
    run.backends = {backend_and_size.first};
    run.steps = steps_of(results);
  }
  if (settings.micro) {
    add("pieces", 1);
  }
  return runs;
}

double expected_seconds(const MicroRun& run) {
  return run.suite == "limits" ? 3 : run.suite == "pieces" ? 20 : 10;
}

/// @throws Error if it measured nothing
MicroResults run_micro(const MicroRun& run, const Plan& plan, Session& session) {
  const std::string out = session.scratch.path() + "/micro.json";
  std::filesystem::remove(out);
  Command command = {.argv = micro_command(plan.program_path("bench_micro"), run, out),
                     .timeout_s = session.settings.timeout_s + 4 * expected_seconds(run),
                     .cwd = session.scratch.path()};
  if (run.backends == std::vector<std::string>{"mpi"}) {
    // It starts its ranks itself, except MPI's.
    Configuration ranks;
    ranks.launcher = "mpirun";
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
void hand_over(const MicroResults& measured, const Traffic& traffic) {
  for (const StepAllReduce& step : measured.steps) {
    const auto found = traffic.find({step.backend, step.world_size});
    if (found == traffic.end() || !step.time_us.median) {
      continue;
    }
    for (Result* const result : found->second) {
      if (step_name(*result) == step.name) {
        result->alone_ms = *step.time_us.median / 1e3;
      }
    }
  }
}

}  // namespace

void measure_limits(Session& session, Plan& plan, Measurements& measurements) {
  const Settings& settings = session.settings;
  const std::string why_not =
      !is_executable(plan.program_path("bench_micro")) ? "no bench_micro in " + plan.stage_dir
      : settings.nodes > 1
          ? fmt::format("they are measured on one node only, and --nodes is {}", settings.nodes)
          : "";
  if (!why_not.empty()) {
    plan.not_run.push_back({"limits, all-reduce sweep and predictions", why_not});
    return;
  }
  const Traffic traffic = traffic_of(measurements);
  const std::vector<MicroRun> runs = make_runs(settings, plan, measurements, traffic);
  std::vector<double> expected_s;
  for (const MicroRun& run : runs) {
    expected_s.push_back(expected_seconds(run));
  }
  double later_s = 0;
  for (const Result& result : measurements.results) {
    later_s += result.error.empty() ? settings.repetitions * (result.overhead_s + 0.3) : 0;
  }
  session.progress.begin("limits", expected_s, later_s);
  for (const MicroRun& run : runs) {
    if (session.interrupts.requested()) {
      break;
    }
    std::string label = fmt::format("{}/ranks:{}", run.suite, *run.world_size);
    label += run.backends.empty() ? "" : "/" + run.backends.front();
    session.progress.start_run(label, expected_seconds(run));
    try {
      const MicroResults measured = run_micro(run, plan, session);
      hand_over(measured, traffic);
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

}  // namespace ddp::bench
