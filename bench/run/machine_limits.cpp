#include "bench/run/machine_limits.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "bench/run/child_process.hpp"
#include "bench/run/micro_command.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/process.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

/// Who all-reduces what: configurations that agree in these share one measurement.
using Traffic = std::pair<std::string, int>;  // backend, world size

std::vector<std::int64_t> to_integers(const std::vector<double>& values) {
  std::vector<std::int64_t> integers;
  integers.reserve(values.size());
  for (const double value : values) {
    integers.push_back(static_cast<std::int64_t>(value));
  }
  return integers;
}

class LimitRuns {
 public:
  LimitRuns(const Settings& settings, const Plan& plan, Measurements& measurements)
      : settings_(settings), plan_(plan) {
    for (std::size_t i = 0; i < measurements.results.size(); ++i) {
      Result& result = measurements.results[i];
      const Configuration& configuration = result.configuration;
      if (!result.error.empty()) {
        continue;
      }
      world_sizes_.insert(configuration.world_size);
      if (configuration.communicates() && configuration.role != Role::kPeer) {
        results_[{configuration.backend, configuration.world_size}].push_back(&result);
      }
    }
  }

  std::vector<MicroRun> runs() const {
    std::vector<MicroRun> runs;
    for (const int world_size : world_sizes_) {
      runs.push_back(run("limits", world_size));
    }
    for (const auto& [traffic, results] : results_) {
      MicroRun all_reduces = run("all_reduce", traffic.second);
      all_reduces.backends = {traffic.first};
      all_reduces.steps = steps_of(results);
      runs.push_back(all_reduces);
    }
    if (settings_.micro) {
      runs.push_back(run("pieces", 1));
    }
    return runs;
  }

  /// Hands what a run of `traffic` measured to the results that have these buckets.
  void hand_over(const MicroResults& measured) const {
    for (const StepAllReduce& step : measured.steps) {
      const auto found = results_.find({step.backend, step.world_size});
      if (found == results_.end()) {
        continue;
      }
      for (Result* result : found->second) {
        if (step_name(*result) == step.name && step.time_us.median) {
          result->alone_ms = *step.time_us.median / 1e3;
        }
      }
    }
  }

 private:
  MicroRun run(const std::string& suite, int world_size) const {
    MicroRun micro_run;
    micro_run.suite = suite;
    micro_run.world_size = world_size;
    micro_run.device = plan_.device;
    micro_run.timeout_s = settings_.timeout_s;
    micro_run.min_seconds = settings_.quick ? 0.05 : 0.2;
    return micro_run;
  }

  /// The same buckets, the same name: "192", "4096_8192".
  static std::string step_name(const Result& result) {
    std::string name;
    for (const std::int64_t bytes : to_integers(result.bucket_bytes)) {
      name += (name.empty() ? "" : "_") + std::to_string(bytes);
    }
    return name;
  }

  static std::vector<MicroRun::Step> steps_of(const std::vector<Result*>& results) {
    std::map<std::string, std::vector<std::int64_t>> distinct;
    for (const Result* result : results) {
      if (!result->bucket_bytes.empty()) {
        distinct[step_name(*result)] = to_integers(result->bucket_bytes);
      }
    }
    std::vector<MicroRun::Step> steps;
    for (const auto& [name, bytes] : distinct) {
      steps.push_back({name, bytes});
    }
    return steps;
  }

  const Settings& settings_;
  const Plan& plan_;
  std::set<int> world_sizes_;
  std::map<Traffic, std::vector<Result*>> results_;
};

/// bench_micro starts its ranks itself, except MPI's.
std::vector<std::string> started_by_launcher(const MicroRun& run, const Plan& plan,
                                             std::vector<std::string> argv) {
  if (run.backends == std::vector<std::string>{"mpi"}) {
    Configuration ranks;
    ranks.launcher = "mpirun";
    ranks.world_size = run.world_size.value_or(1);
    const std::vector<std::string> launcher = launcher_command(ranks, plan);
    argv.insert(argv.begin(), launcher.begin(), launcher.end());
  }
  return argv;
}

double expected_seconds(const MicroRun& run) {
  return run.suite == "limits" ? 3 : run.suite == "pieces" ? 20 : 10;
}

}  // namespace

void measure_limits(const Settings& settings, const std::string& scratch, Interrupts& interrupts,
                    Progress& progress, Plan& plan, Measurements& measurements) {
  const std::string program = (fs::path(plan.stage_dir) / "bench_micro").string();
  if (!is_executable(program)) {
    plan.not_run.push_back(
        {"limits, all-reduce sweep and predictions", "no bench_micro in " + plan.stage_dir});
    return;
  }
  if (settings.nodes > 1) {
    plan.not_run.push_back(
        {"limits, all-reduce sweep and predictions",
         "they are measured on one node only, and --nodes is " + std::to_string(settings.nodes)});
    return;
  }
  const LimitRuns limit_runs(settings, plan, measurements);
  const std::vector<MicroRun> runs = limit_runs.runs();
  std::vector<double> expected_s;
  for (const MicroRun& run : runs) {
    expected_s.push_back(expected_seconds(run));
  }
  double later_s = 0;
  for (const Result& result : measurements.results) {
    later_s += result.error.empty() ? settings.repetitions * (result.overhead_s + 0.3) : 0;
  }
  progress.begin("limits", expected_s, later_s);
  for (const MicroRun& run : runs) {
    if (interrupts.requested() || measurements.partial) {
      break;
    }
    std::string label = run.suite + "/ranks:" + std::to_string(run.world_size.value_or(1));
    label += run.backends.empty() ? "" : "/" + run.backends.front();
    progress.start_run(label, expected_seconds(run));
    const std::string out = (fs::path(scratch) / "micro.json").string();
    std::error_code ignored;
    fs::remove(out, ignored);
    const Command command = {
        .argv = started_by_launcher(run, plan, micro_command(program, run, out)),
        .env = {},
        .cwd = scratch,
        .timeout_s = settings.timeout_s + 4 * expected_seconds(run),
    };
    const ChildResult child =
        run_child(command, scratch, interrupts,
                  progress.on_terminal() ? [&] { progress.tick(); } : std::function<void()>());
    progress.finish_run(child.seconds);
    if (child.interrupted) {
      break;
    }
    try {
      if (!child.ok()) {
        throw Error(ExitCode::kTrainingFailed, describe_failure(child, command.timeout_s));
      }
      const MicroResults measured = read_micro_results(out);
      limit_runs.hand_over(measured);
      measurements.micro.append(measured);
      for (const std::string& error : measured.errors) {
        plan.not_run.push_back({label, error});
      }
    } catch (const Error& error) {
      plan.not_run.push_back({label, error.what()});
      progress.note(label + ": " + error.what());
    }
  }
  progress.end();
  measurements.partial = measurements.partial || interrupts.requested();
}

}  // namespace ddp::bench
