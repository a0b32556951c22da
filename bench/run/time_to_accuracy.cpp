#include "bench/run/time_to_accuracy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "bench/run/measurement.hpp"

namespace ddp::bench {
namespace {

struct Goal {
  Workload workload;
  double accuracy = 0;
  double learning_rate = 0;  ///< the stages' default
  std::int64_t most_epochs = 0;
  double epoch_seconds = 0;  ///< roughly, for progress
};

const std::vector<Goal>& goals() {
  static const std::vector<Goal> goals = {
      {*find_workload("digits"), 0.95, 0.1, 64, 0.02},
      {{"fashion-mnist", "", 32, false, {784, 256, 128, 10}}, 0.88, 0.05, 16, 0.7},
  };
  return goals;
}

/// One way to reach a goal.
struct Way {
  const Goal* goal;
  Configuration configuration;
  TimeToAccuracy result;

  double seconds_of(std::int64_t epochs) const {
    return 0.5 + static_cast<double>(epochs) * goal->epoch_seconds;
  }
};

/// Stage 01, and stage 03 with as many ranks as the plan has at most.
std::vector<Configuration> pick_programs(const Plan& plan) {
  std::vector<Configuration> picked;
  const Configuration* several = nullptr;
  for (const Configuration& configuration : plan.configurations) {
    if (configuration.is_baseline() && picked.empty()) {
      picked.push_back(configuration);
    } else if (configuration.role == Role::kStage && configuration.program.name == kDistributed &&
               configuration.world_size > (several == nullptr ? 1 : several->world_size)) {
      several = &configuration;
    }
  }
  if (several != nullptr) {
    picked.push_back(*several);
  }
  return picked;
}

/// At the batch of one process, and at that of all ranks together with a learning rate that has
/// grown with it.
std::vector<Way> make_ways(const Plan& plan, const Goal& goal) {
  std::vector<Way> ways;
  const std::vector<Configuration> programs = pick_programs(plan);
  for (const Configuration& program : programs) {
    std::set<int> growths = {1, programs.back().world_size};
    for (const int growth : growths) {
      Way way = {.goal = &goal, .configuration = program, .result = {}};
      Configuration& configuration = way.configuration;
      configuration.workload = goal.workload;
      configuration.global_batch = goal.workload.batch * growth;
      if (growth > 1) {
        configuration.more_options = {"--lr", fmt::format("{}", goal.learning_rate * growth)};
      }
      if (const std::string& folder = plan.settings.data_dir;
          !folder.empty() && goal.workload.name != "digits") {
        configuration.more_options.insert(configuration.more_options.end(), {"--data-dir", folder});
      }
      way.result = {.dataset = goal.workload.name,
                    .target = goal.accuracy,
                    .program = program.program.name,
                    .world_size = program.world_size,
                    .global_batch = configuration.global_batch,
                    .scale_lr = growth > 1};
      ways.push_back(std::move(way));
    }
  }
  return ways;
}

StageRun train(const Way& way, std::int64_t epochs, const Plan& plan, Session& session) {
  const RunLength length = {.epochs = epochs, .global_batch = way.configuration.global_batch};
  session.progress.start_run(fmt::format("{} on {} ranks, batch {}, {} epochs", way.result.dataset,
                                         way.result.world_size, way.result.global_batch, epochs),
                             way.seconds_of(epochs));
  StageRun run = run_stage(way.configuration, length, plan, session);
  session.progress.finish_run(run.wall_s);
  return run;
}

/// Fills in the epochs and the accuracy, or the error. @return false if the dataset is not there
bool search(Way& way, Plan& plan, Session& session) {
  TimeToAccuracy& result = way.result;
  StageRun failed;
  double best = 0;
  const auto reaches = [&](std::int64_t epochs) {
    if (!failed.error.empty() || session.interrupts.requested()) {
      return false;
    }
    const StageRun run = train(way, epochs, plan, session);
    const double accuracy = run.metrics.accuracy.value_or(0);
    if (!run.error.empty()) {
      failed = run;
      return false;
    }
    best = std::max(best, accuracy);
    if (accuracy >= result.target) {
      result.accuracy = accuracy;  // the last one that reaches it is the answer's
    }
    return accuracy >= result.target;
  };
  result.epochs = find_smallest(way.goal->most_epochs, reaches);
  if (failed.usage_error) {
    plan.not_run.push_back({"time to accuracy on " + result.dataset, failed.error});
    return false;
  }
  // An answer that an interrupt has cut short is not the smallest.
  const bool interrupted = session.interrupts.requested();
  if (interrupted || !failed.error.empty() || !result.epochs) {
    result.epochs.reset();
    result.accuracy.reset();
    result.error = interrupted ? std::string(kInterrupted)
                   : !failed.error.empty()
                       ? failed.error
                       : fmt::format("after at most {} epochs the accuracy was {:.4f}",
                                     way.goal->most_epochs, best);
  }
  return true;
}

/// Programs that train with the same batch make one training, to rounding, which decides where the
/// accuracy is close to the goal: the same number of epochs for all of them, the larger one.
void agree_on_epochs(std::vector<Way>& ways) {
  for (Way& way : ways) {
    for (const Way& other : ways) {
      if (way.result.epochs && other.result.epochs && way.goal == other.goal &&
          way.result.global_batch == other.result.global_batch) {
        way.result.epochs = std::max(*way.result.epochs, *other.result.epochs);
      }
    }
  }
}

/// From the begin of the first step to the end of the last, with what lies between epochs where
/// the ranks share a clock.
double training_ms(const std::vector<Step>& steps) {
  const double clock_ms = steps.back().end_ms - steps.front().end_ms;
  return std::isfinite(clock_ms) ? steps.front().step_ms + clock_ms : sum(step_times_ms(steps));
}

void time(std::vector<Way>& ways, const Plan& plan, Session& session) {
  const int repetitions = plan.settings.few_repetitions();
  double expected_s = 0;
  std::size_t count = 0;
  for (const Way& way : ways) {
    expected_s += way.result.epochs ? repetitions * way.seconds_of(*way.result.epochs) : 0;
    count += static_cast<std::size_t>(way.result.epochs ? repetitions : 0);
  }
  session.progress.begin("time to accuracy", count, expected_s, 0);
  std::vector<std::vector<double>> seconds(ways.size());
  std::vector<std::vector<double>> seconds_with_start(ways.size());
  std::vector<std::size_t> order(ways.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 generator(plan.settings.seed);
  for (int block = 0; block < repetitions; ++block) {
    std::shuffle(order.begin(), order.end(), generator);
    for (const std::size_t i : order) {
      if (!ways[i].result.epochs || session.interrupts.requested()) {
        continue;
      }
      const StageRun run = train(ways[i], *ways[i].result.epochs, plan, session);
      if (run.error.empty()) {
        ways[i].result.accuracy = run.metrics.accuracy;
        const std::vector<Step>& steps = run.metrics.steps;
        const double all_ms = training_ms(steps);
        seconds[i].push_back(all_ms / 1e3);
        seconds_with_start[i].push_back((run.startup_ms + all_ms - steps.front().step_ms) / 1e3);
      }
    }
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ways[i].result.seconds = summarize(seconds[i]);
    ways[i].result.seconds_with_start = summarize(seconds_with_start[i]);
  }
  session.progress.end();
}

}  // namespace

std::optional<std::int64_t> find_smallest(std::int64_t most,
                                          const std::function<bool(std::int64_t)>& is_enough) {
  std::int64_t too_few = 0;
  std::int64_t enough = 1;
  while (!is_enough(enough)) {
    too_few = enough;
    if (enough == most) {
      return std::nullopt;
    }
    enough = std::min(2 * enough, most);
  }
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    (is_enough(middle) ? enough : too_few) = middle;
  }
  return enough;
}

void measure_time_to_accuracy(Plan& plan, Session& session, Measurements& measurements) {
  std::vector<Way> ways;
  for (const Goal& goal : goals()) {
    std::vector<Way> tried = make_ways(plan, goal);
    const auto questions =
        2 * static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(goal.most_epochs)));
    session.progress.begin("epochs to accuracy, at most", tried.size() * questions,
                           kTimeToAccuracySeconds / 4, kTimeToAccuracySeconds / 4);
    for (Way& way : tried) {
      if (session.interrupts.requested() || !search(way, plan, session)) {
        break;
      }
      ways.push_back(std::move(way));
    }
    session.progress.end();
  }
  agree_on_epochs(ways);
  time(ways, plan, session);
  for (Way& way : ways) {
    if (way.result.error) {
      session.progress.note(fmt::format("time to accuracy on {}, {} ranks: {}", way.result.dataset,
                                        way.result.world_size, *way.result.error));
    }
    measurements.time_to_accuracy.push_back(std::move(way.result));
  }
  measurements.partial = measurements.partial || session.interrupts.requested();
}

}  // namespace ddp::bench
