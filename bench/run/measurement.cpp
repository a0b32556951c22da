#include "bench/run/measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "bench/report/format.hpp"
#include "bench/report/statistics.hpp"
#include "bench/run/child_process.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"

namespace ddp::bench {
namespace {

constexpr int kMaxAttempts = 3;
constexpr double kMostServerSeconds = 60;  // to import a framework
/// What was expected over what it took, here: first launches take longer than later ones.
constexpr double kFirstLaunches = 1.2;
constexpr double kServedStartSeconds = 1.2;  // of a run whose framework is imported

constexpr std::int64_t kDatasetSize = 2048;  // the stages' default for synthetic data
constexpr std::int64_t kAssumedTrainSize = 1400;  // of a real dataset, until its stage told
constexpr std::int64_t kParitySteps = 48;

constexpr std::int64_t kMinSteps = 40;
constexpr std::int64_t kMaxSteps = 4000;
/// Of the 50 ms that are warm-up in any case, with what the parity run misjudges.
constexpr double kWarmupSeconds = 0.1;
constexpr double kMinMeasuredSeconds = 0.1;  // of one run, start-up not counted
constexpr double kMaxMeasuredSeconds = 0.15;  // launches vary more than steps

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Synthetic data of whole batches, so that every step is as large as the next.
RunLength length_with(const Workload& workload, std::int64_t global_batch) {
  const std::int64_t batches = std::max<std::int64_t>(1, kDatasetSize / global_batch);
  return {.epochs = kUnknownEpochs,
          .global_batch = global_batch,
          .dataset_size = workload.synthetic ? batches * global_batch : 0};
}

/// From the start of the command, launcher included. The stage tells when its first step ended by
/// the wall clock, which may have been set in between: then only its own process counts.
double startup_ms(const StageMetrics& metrics, const ChildResult& child) {
  const double since_start_ms = metrics.first_step_unix_ms.value_or(0) - child.start_unix_ms;
  const bool plausible = since_start_ms > 0 && since_start_ms <= child.seconds * 1e3;
  return plausible ? since_start_ms : largest_or_zero(metrics.startup_ms);
}

/// Of all GPUs that it used, for a sample of its timed steps.
std::optional<double> energy_j_per_sample(const StageMetrics& metrics, const ChildResult& child) {
  const std::optional<Interval> timed = metrics.timed_unix_ms();
  const auto power_w = timed ? mean_power_w(child.gpu_power, *timed) : std::nullopt;
  const auto speed = wall_samples_per_second(metrics.global_batch, metrics.timed_steps());
  return power_w && speed ? std::optional(*power_w / *speed) : std::nullopt;
}

}  // namespace

StageRun run_stage(const Configuration& configuration, const RunLength& length, const Plan& plan,
                   Session& session) {
  // A folder of its own, empty at the start: nothing of another run can be read by mistake.
  const std::filesystem::path folder = std::filesystem::path(session.scratch.path()) / "run";
  const std::string metrics_path = (folder / "metrics.jsonl").string();
  const std::string snapshot_path = (folder / "snapshot.safetensors").string();
  Command command = {
      .argv = command_line(configuration, plan, length, metrics_path, snapshot_path),
      .timeout_s = plan.settings.timeout_s,
      .cwd = folder.string(),
  };
  if (configuration.launcher == "torchrun") {
    command.env["TMPDIR"] = folder.string();  // it leaves a folder behind
  }
  // Its first run, which is not timed, tells what a start takes.
  const std::string server = configuration.role == Role::kPeer && length.timed_steps > 0
                                 ? session.peers.socket_of(configuration.program.name)
                                 : "";
  if (!server.empty()) {
    command.env["DDP_PEER_SERVER"] = server;
  }
  session.gpus.watch_first(plan.settings.device == "cpu" ? 0 : configuration.world_size);
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
  StageRun run;
  run.wall_s = child.seconds;
  run.interrupted = child.interrupted;
  run.conditions = child.conditions;
  if (configuration.launcher == "srun" || !server.empty()) {
    // Its ranks are children of Slurm's daemon or of the server, and would count as other programs.
    run.conditions.others_busy_share.reset();
    run.conditions.steal_share.reset();
  }
  if (!child.ok()) {
    run.error = describe_failure(child, command.timeout_s);
    run.usage_error = child.exit_code == static_cast<int>(ExitCode::kUsage);
    return run;
  }
  try {
    run.metrics = read_metrics(metrics_path, configuration.processes(), configuration.nodes == 1,
                               length.timed_steps);
    if (!run.metrics.cores.empty()) {
      run.conditions.affinity = run.metrics.cores;
    }
    if (run.metrics.global_batch != length.global_batch) {
      run.error = fmt::format("it trained with a global batch of {}, expected {}",
                              run.metrics.global_batch, length.global_batch);
    }
  } catch (const Error& error) {
    run.error = error.what();
  }
  run.startup_ms = server.empty() ? startup_ms(run.metrics, child) : 0;
  if (const auto gpu = session.gpus.take()) {
    run.gpu = GpuUsage{gpu->utilisation_percent, gpu->power_w, gpu->memory_mib,
                       energy_j_per_sample(run.metrics, child)};
  }
  return run;
}

namespace {

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

std::string format_moved(const std::optional<double>& moved) {
  return moved ? fmt::format("{:.7g}", *moved) : "not a number";
}

/// Steps that an epoch has at least with the batch of `result.length`, told from its parity run.
std::int64_t steps_per_epoch(const Result& result, const StageMetrics& parity_run) {
  const RunLength& length = result.length;
  if (length.dataset_size > 0) {
    return length.dataset_size / length.global_batch;
  }
  const auto steps = static_cast<std::int64_t>(parity_run.steps.size());
  const std::int64_t per_epoch = steps / std::max<std::int64_t>(1, parity_run.epochs);
  // The last batch of an epoch may have held one sample only.
  const std::int64_t least_samples = (per_epoch - 1) * result.configuration.parity_batch + 1;
  return std::max<std::int64_t>(1, least_samples / length.global_batch);
}

void judge_parity(const StageRun& run, double reference_moved, Result& result) {
  const StageMetrics& metrics = run.metrics;
  // Rounded gradients end elsewhere: about as far away as their type rounds.
  const bool is_exact = result.configuration.gradients.compression == "none";
  result.parity.moved = finite(metrics.moved);
  result.parity.reference_moved = finite(reference_moved);
  result.parity.ok = parity_holds(metrics.moved, reference_moved,
                                  is_exact ? kParityTolerance : kCompressedParityTolerance);
  if (!result.parity.ok) {
    result.error =
        fmt::format("parity: moved {}, stage 01 moved {}", format_moved(result.parity.moved),
                    format_moved(result.parity.reference_moved));
  }
  const std::vector<Step> timed = metrics.timed_steps();
  const std::vector<double> steps_ms = step_times_ms(metrics.steps);
  result.parity_step_ms =
      median(timed.size() >= kMinSamplesForSpread ? step_times_ms(timed) : steps_ms).value_or(0);
  result.overhead_s = std::max(0.0, run.wall_s - sum(steps_ms) / 1e3);
  result.bucket_bytes = metrics.all_reduce_bytes;
  result.told_bytes_per_step = metrics.bytes_per_step;
  result.length = timed_length(result.configuration);
  result.steps_per_epoch = steps_per_epoch(result, metrics);
  // A warm-up that took half of a short run may be longer in a longer one.
  const bool may_grow =
      2 * metrics.warmup_steps + 1 >= static_cast<std::int64_t>(metrics.steps.size());
  result.warmup_steps = metrics.warmup_steps * (may_grow ? 2 : 1);
}

/// Weak and strong scaling of a program are the same run here; so are a control and its original.
std::string parity_key(Configuration configuration) {
  configuration.scaling = "";
  return configuration.original_name();
}

/// Stage 01 on the same work.
Configuration reference_of(const Configuration& configuration) {
  Configuration reference;
  reference.workload = configuration.workload;
  reference.program = known_programs().front();
  reference.device = configuration.device;
  reference.scaling = configuration.scaling;
  reference.parity_batch = configuration.parity_batch;
  return reference;
}

/// What to run, each once, references first.
std::vector<Configuration> parity_runs(const Plan& plan) {
  std::vector<Configuration> order;
  for (const Configuration& configuration : plan.configurations) {
    for (const Configuration& wanted : {reference_of(configuration), configuration}) {
      const bool listed = std::ranges::any_of(
          order, [&](const Configuration& c) { return parity_key(c) == parity_key(wanted); });
      if (!listed) {
        order.push_back(wanted);
      }
    }
  }
  return order;
}

/// A peer in Python whose runs may be forks of a process that has imported its framework: not
/// TensorFlow, whose threads no fork has.
bool may_be_served(const Configuration& configuration, const Plan& plan) {
  return configuration.role == Role::kPeer && configuration.program.start == Start::kSpawn &&
         plan.peer_pythons.contains(configuration.program.name);
}

/// What a run costs before anything of it has been measured.
double assumed_seconds(const Configuration& configuration, const Plan& plan) {
  const bool python = configuration.launcher == "torchrun" ||
                      plan.peer_pythons.contains(configuration.program.name);
  const bool own_start = configuration.launcher == "mpirun" || configuration.launcher == "srun";
  return python ? 5.0 : own_start ? 1.0 : configuration.processes() > 1 ? 0.8 : 0.4;
}

double expected_seconds(const Result& result) {
  const auto steps = static_cast<double>(result.length.epochs * result.steps_per_epoch);
  return result.overhead_s + steps * result.parity_step_ms / 1e3;
}

/// Once the peers' parity runs have shown what a start of their own takes, and before anything is
/// timed.
/// @param runs the parity runs, by parity_key()
void start_peer_servers(const Plan& plan, const std::map<std::string, StageRun>& runs,
                        Session& session, Measurements& measurements) {
  for (const Configuration& configuration : plan.configurations) {
    const std::string& peer = configuration.program.name;
    if (may_be_served(configuration, plan) && configuration.is_timed() &&
        !session.peers.has(peer)) {
      session.progress.note(fmt::format("peer {}: importing once for all timed runs", peer));
      session.peers.start(
          peer, plan.peer_pythons.at(peer),
          (std::filesystem::path(plan.settings.peers_dir) / (peer + ".py")).string());
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  while (!session.peers.settled() && !session.interrupts.requested() &&
         seconds_since(begin) < kMostServerSeconds) {
    session.interrupts.wait_for_child(0.1);
  }
  session.peers.end_others();
  for (Result& result : measurements.results) {
    if (result.configuration.role == Role::kPeer &&
        !session.peers.socket_of(result.configuration.program.name).empty() &&
        result.error.empty()) {
      if (result.configuration.device == "cpu") {
        result.overhead_s = kServedStartSeconds;  // on a GPU its ranks still import
      }
      result.whole_start = runs.at(parity_key(result.configuration));
    }
  }
}

/// Why nothing can be said of a run; empty if something can.
std::string error_of(const StageRun& run) {
  if (!run.error.empty()) {
    return run.error;
  }
  if (!std::isfinite(run.metrics.moved)) {
    return "moved is not a number";
  }
  return run.metrics.timed_steps().empty()
             ? fmt::format("all of its {} steps are warm-up", run.metrics.steps.size())
             : "";
}

/// How fast it is without communication is a fact about the original.
void hand_over_runs_without_communication(std::vector<Result>& results) {
  for (const Result& without : results) {
    if (without.configuration.role != Role::kNoCommunication || !without.was_measured()) {
      continue;
    }
    for (Result& result : results) {
      // Whoever started the ranks: torchrun's runs have none of their own.
      Configuration same = without.configuration;
      same.launcher = result.configuration.launcher;
      const bool own =
          result.configuration.original_name() == without.configuration.original_name();
      const bool row = result.configuration.role != Role::kNoCommunication;
      if (row && (own || (!result.no_comm_step_ms &&
                          same.original_name() == result.configuration.original_name()))) {
        result.no_comm_step_ms = median(step_times_ms(without.timed_steps()));
        result.no_comm_medians_ms = without.repetition_medians_ms();
      }
    }
  }
}

void limit_repetitions(int most, Measurements& measurements) {
  for (Result& result : measurements.results) {
    result.configuration.repetitions = std::min(result.configuration.repetitions, most);
  }
}

/// What the runs of a block will take, as those of the block before it did.
double seconds_of_block(const Measurements& measurements, int block) {
  double total_s = 0;
  for (const Result& result : measurements.results) {
    if (result.configuration.runs_in(block) && !result.repetitions.empty() &&
        result.repetitions.back()) {
      total_s += result.repetitions.back()->wall_s;
    }
  }
  return total_s;
}

/// Those that nobody asked for.
void leave_peers_untimed(double expected_s, Plan& plan, Measurements& measurements) {
  std::map<std::string, int> left_out;  // configurations of each peer
  for (Result& result : measurements.results) {
    if (result.configuration.role == Role::kPeer && result.configuration.is_timed()) {
      ++left_out[result.configuration.program.stage];
      result.configuration.repetitions = 0;
    }
  }
  for (const auto& [peer, count] : left_out) {
    plan.not_run.push_back(
        {fmt::format("timing {} on {} model{}", peer, count, count == 1 ? "" : "s"),
         fmt::format(
             "all runs would take {:.0f} s, more than the {} s of --budget: --peers {} or a "
             "larger --budget adds it",
             expected_s, format_shortest(plan.settings.budget_s), peer)});
  }
}

}  // namespace

RunLength timed_length(const Configuration& configuration) {
  return length_with(configuration.workload, configuration.global_batch);
}

RunLength parity_length(const Configuration& configuration) {
  RunLength length = length_with(configuration.workload, configuration.parity_batch);
  const std::int64_t size = length.dataset_size > 0 ? length.dataset_size : kAssumedTrainSize;
  const std::int64_t steps_per_epoch = std::max<std::int64_t>(1, size / length.global_batch);
  length.epochs = std::clamp<std::int64_t>(divide_up(kParitySteps, steps_per_epoch), 2, 50);
  return length;
}

Measurements check_parity(const Plan& plan, Session& session) {
  const std::vector<Configuration> order = parity_runs(plan);
  const auto seconds_of_one = [&](const Configuration& configuration) {
    return assumed_seconds(configuration, plan);
  };
  const double expected_s =
      std::transform_reduce(order.begin(), order.end(), 0.0, std::plus<>(), seconds_of_one);
  const double later_s = std::transform_reduce(
      plan.configurations.begin(), plan.configurations.end(), 0.0, std::plus<>(),
      [&](const Configuration& configuration) {
        const double start_s = may_be_served(configuration, plan) ? kServedStartSeconds
                                                                  : seconds_of_one(configuration);
        return configuration.repetitions * (start_s + kTimedStepsSeconds);
      });
  session.progress.begin("parity", order.size(), expected_s, later_s);
  std::map<std::string, StageRun> runs;
  for (const Configuration& configuration : order) {
    session.progress.start_run(configuration.original_name(), seconds_of_one(configuration));
    Configuration trained = configuration;
    trained.role = configuration.role == Role::kPeer ? Role::kPeer : Role::kStage;
    const StageRun run = run_stage(trained, parity_length(trained), plan, session);
    session.progress.finish_run(run.wall_s);
    if (run.interrupted) {
      break;
    }
    if (configuration.is_baseline() && run.usage_error) {
      session.progress.end();
      throw UsageError("01_single_gpu refuses: " + run.error);
    }
    runs[parity_key(configuration)] = run;
  }
  session.progress.end();

  Measurements measurements;
  measurements.partial = session.interrupts.requested();
  for (const Configuration& configuration : plan.configurations) {
    Result& result = measurements.results.emplace_back();
    result.configuration = configuration;
    const auto own = runs.find(parity_key(configuration));
    const auto reference = runs.find(parity_key(reference_of(configuration)));
    if (own == runs.end() || reference == runs.end()) {
      result.error = "interrupted before its parity was checked";
    } else if (!own->second.error.empty()) {
      result.error = own->second.error;
    } else if (!reference->second.error.empty()) {
      result.error = "no reference: 01_single_gpu: " + reference->second.error;
    } else {
      judge_parity(own->second, reference->second.metrics.moved, result);
    }
    if (!result.error.empty() && !measurements.partial && configuration.is_original()) {
      session.progress.note(configuration.name() + ": " + result.error);
    }
  }
  if (!measurements.partial) {
    start_peer_servers(plan, runs, session, measurements);
  }
  return measurements;
}

void choose_lengths(const Settings& settings, double used_s, Measurements& measurements) {
  int runs = 0;
  for (const Result& result : measurements.results) {
    if (result.error.empty()) {
      used_s += result.configuration.repetitions * (result.overhead_s + kWarmupSeconds);
      runs += result.configuration.repetitions;
    }
  }
  const double measured_s = std::clamp((settings.budget_s - used_s) / std::max(runs, 1),
                                       kMinMeasuredSeconds, kMaxMeasuredSeconds);
  for (Result& result : measurements.results) {
    if (!result.error.empty()) {
      continue;
    }
    const double step_s = std::max(1e-6, result.parity_step_ms / 1e3);
    result.length.timed_steps = settings.steps.value_or(static_cast<std::int64_t>(std::clamp(
        measured_s / step_s, static_cast<double>(kMinSteps), static_cast<double>(kMaxSteps))));
    const std::int64_t warmup_steps = std::max(
        result.warmup_steps, static_cast<std::int64_t>(std::ceil(kWarmupSeconds / step_s)));
    result.length.epochs =
        divide_up(result.length.timed_steps + warmup_steps, result.steps_per_epoch);
  }
}

void keep_to_budget(Plan& plan, double used_s, double later_s, Measurements& measurements) {
  const Settings& settings = plan.settings;
  const auto expected_s = [&](int most) {
    double total_s = used_s + later_s;
    for (const Result& result : measurements.results) {
      total_s += std::min(result.configuration.repetitions, most) *
                 (result.error.empty() ? expected_seconds(result) : 0);
    }
    return total_s;
  };
  const auto most_within_budget = [&] {
    int most = settings.most_repetitions();
    while (most > settings.few_repetitions() && expected_s(most) > settings.budget_s) {
      --most;
    }
    return most;
  };
  int most = most_within_budget();
  if (settings.peers.empty() && expected_s(most) > kFirstLaunches * settings.budget_s) {
    leave_peers_untimed(expected_s(most), plan, measurements);
    most = most_within_budget();
  }
  limit_repetitions(most, measurements);
  if (expected_s(most) > settings.budget_s) {
    plan.notes.push_back(fmt::format(
        "these runs were expected to take {:.0f} s, more than the {} s of --budget: fewer "
        "repetitions than {} {}",
        expected_s(most), format_shortest(settings.budget_s), most,
        settings.repetitions || settings.quick ? "were not asked for" : "would leave no interval"));
  }
}

void measure(const Plan& plan, Session& session, double used_s, double later_s,
             Measurements& measurements) {
  const Settings& settings = plan.settings;
  const auto begin = std::chrono::steady_clock::now();
  const auto fits = [&](int block) {
    return block < settings.few_repetitions() ||
           used_s + seconds_since(begin) + seconds_of_block(measurements, block) + later_s <=
               settings.budget_s;
  };
  std::vector<Result*> order;
  double expected_s = 0;
  std::size_t runs = 0;
  for (Result& result : measurements.results) {
    if (result.error.empty() && result.configuration.is_timed()) {
      order.push_back(&result);
      expected_s += result.configuration.repetitions * expected_seconds(result);
      runs += static_cast<std::size_t>(result.configuration.repetitions);
    }
  }
  session.progress.begin("timed", runs, expected_s, later_s);
  std::mt19937_64 generator(settings.seed);
  const int blocks = measurements.blocks();
  for (int block = 0; block < blocks && !measurements.partial; ++block) {
    if (!fits(block)) {
      limit_repetitions(block, measurements);
      break;
    }
    std::shuffle(order.begin(), order.end(), generator);
    for (Result* const result : order) {
      std::optional<StageRun>& repetition = result->repetitions.emplace_back();
      if (!result->error.empty() || measurements.partial || !result->configuration.runs_in(block)) {
        continue;
      }
      const std::string name = result->configuration.name();
      session.progress.start_run(name, expected_seconds(*result));
      StageRun run = run_stage(result->configuration, result->length, plan, session);
      session.progress.finish_run(run.wall_s);
      measurements.partial = run.interrupted;
      if (run.interrupted) {
        continue;
      }
      result->error = error_of(run);
      if (result->error.empty()) {
        repetition = std::move(run);
      } else {
        session.progress.note(name + ": " + result->error);
      }
    }
  }
  session.progress.end();
  for (Result& result : measurements.results) {
    if (result.error.empty() && result.configuration.is_timed() && !result.was_measured()) {
      result.error = kInterrupted;
    }
  }
  hand_over_runs_without_communication(measurements.results);
}

}  // namespace ddp::bench
