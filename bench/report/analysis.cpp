#include "bench/report/analysis.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "bench/report/catalog.hpp"
#include "bench/report/communication_model.hpp"
#include "bench/report/format.hpp"
#include "bench/report/micro_results.hpp"

namespace ddp::bench {
namespace {

/// World sizes that the model is asked about beyond the measured ones.
constexpr int kExtrapolatedWorldSizes[] = {8, 64, 256, 1024};

/// Of its backend and device; two where ring and tree cannot be told apart.
std::vector<CommunicationModel> models_of(const Report& report, const Run& run) {
  std::vector<CommunicationModel> models = report.communication_models;
  std::erase_if(models, [&](const CommunicationModel& model) {
    return model.backend != run.backend || model.device != run.device ||
           model.across_nodes != (run.nodes > 1);
  });
  return models;
}

void fit_models(Report& report) {
  // Within a node and between nodes are two networks.
  std::map<std::tuple<std::string, std::string, bool>, std::vector<AllReduceSample>> measured;
  for (const AllReduceSample& sample : report.all_reduce) {
    measured[{sample.backend, sample.device, sample.nodes > 1}].push_back(sample);
  }
  for (const auto& [network, samples] : measured) {
    for (CommunicationModel model : fit_communication_models(samples)) {
      model.across_nodes = std::get<2>(network);
      report.communication_models.push_back(std::move(model));
    }
  }
}

/// The best bus bandwidth that any exchange reached at this world size, in the sweep or as the
/// replay of a step, in GB/s (1e9). So no exchange of as many bytes or more was faster than a floor
/// that it gives.
std::optional<double> best_bus_bandwidth_gbps(const Report& report, const Run& run) {
  std::optional<double> best;
  const auto consider = [&](const auto& exchange, const std::optional<double>& gbps) {
    if (exchange.world_size == run.world_size && exchange.device == run.device && gbps) {
      best = std::max(best.value_or(0), *gbps);
    }
  };
  for (const AllReduceSample& sample : report.all_reduce) {
    // As fast as it was at best, as arithmetic and memory are: a floor is below every step.
    const std::optional<double> best_us =
        sample.time_us.p10 ? sample.time_us.p10 : sample.time_us.median;
    if (sample.bus_bandwidth_gbps && best_us) {
      consider(sample, *sample.bus_bandwidth_gbps * *sample.time_us.median / *best_us);
    }
  }
  for (const Run& other : report.runs) {
    consider(other, other.comm.bus_bandwidth_gbps);
  }
  return best;
}

/// The least time for a step's memory traffic, in milliseconds, at the rate with as many bytes as
/// weights and gradients have. 0 for fewer than were measured: there may be faster caches.
std::optional<double> least_memory_ms(const Limit& limit, const std::vector<std::int64_t>& layers) {
  const double working_set = 2 * parameter_bytes(layers);
  const std::optional<double> best_gbps = memory_gbps(limit.memory, working_set);
  if (!best_gbps) {
    return std::nullopt;
  }
  const bool smaller_than_measured = static_cast<double>(limit.memory.front().bytes) > working_set;
  return smaller_than_measured ? 0 : step_bytes(layers) / (*best_gbps * 1e9) * 1e3;
}

void find_floor(const Report& report, Run& run) {
  const std::optional<Limit> limit = limit_of(report, run.device, run.world_size);
  const Workload* const workload = find_workload(run.model);
  if (!run.has_speed() || workload == nullptr || !limit || !limit->fp32_gflops || run.threads > 1) {
    return;  // limits are those of one thread per rank
  }
  const std::vector<std::int64_t>& layers = workload->layers;
  const double batch_per_rank = static_cast<double>(run.global_batch) / run.world_size;
  Floor floor = {
      .compute_ms = step_flop(layers, batch_per_rank) / (*limit->fp32_gflops * 1e9) * 1e3,
      .memory_ms = least_memory_ms(*limit, layers),
      .comm_ms = 0,
      .launch_ms = std::nullopt};
  if (limit->kernel_launch_us) {
    floor.launch_ms = *limit->kernel_launch_us / 1e3;
  }
  if (run.several_processes()) {
    const std::optional<double> gbps = best_bus_bandwidth_gbps(report, run);
    if (!gbps || !run.comm.bytes_per_step) {
      return;
    }
    floor.comm_ms = *run.comm.bytes_per_step * bus_factor(run.world_size) / (*gbps * 1e9) * 1e3;
  }
  const double floor_ms = std::ranges::max({*floor.compute_ms, floor.memory_ms.value_or(0),
                                            *floor.comm_ms, floor.launch_ms.value_or(0)});
  if (run.step_ms.p10.value_or(*run.step_ms.median) < floor_ms) {
    return;  // the machine was faster than when its limits were measured
  }
  run.floor = floor;
  run.floor_ms = floor_ms;
}

/// "its 2 all-reduces take".
std::string all_reduces_take(const Run& run) {
  const std::size_t count = run.comm.bucket_bytes.size();
  return count == 1 ? "its all-reduce takes" : fmt::format("its {} all-reduces take", count);
}

/// Why the run's communication must not be predicted so; nothing if it may. The replay had the same
/// buckets on the same backend: a model that does not give its time would not give the step's.
std::optional<std::string> contradiction(const Run& run, double model_ms) {
  constexpr double kTolerance = 1.25;
  const double replay_ms = run.comm.alone_ms.value_or(0);
  if (!(replay_ms > 0)) {
    return all_reduces_take(run) + fmt::format(" {} us by the model, which no replay confirms",
                                               format_significant(model_ms * 1e3));
  }
  if (std::max(model_ms / replay_ms, replay_ms / model_ms) <= kTolerance) {
    return std::nullopt;
  }
  return fmt::format("{} {} us by the model, {} us when replayed", all_reduces_take(run),
                     format_significant(model_ms * 1e3), format_significant(replay_ms * 1e3));
}

/// What communication adds to the step without it, where that can be told.
void predict(const Report& report, Run& run) {
  if (!run.has_speed() || !run.several_processes() || run.is_peer()) {
    return;
  }
  run.prediction = predict_step(report, run);
  if (!run.prediction.compute_ms) {
    return;
  }
  run.predicted_step_ms = *run.prediction.compute_ms + *run.prediction.comm_ms;
  std::vector<double> ratios;  // of the blocks that have both: the machine is not the same in all
  for (const std::optional<Repetition>& launch : run.repetitions) {
    if (launch && launch->median_ms && launch->no_comm_median_ms) {
      ratios.push_back(*launch->median_ms / (*launch->no_comm_median_ms + *run.prediction.comm_ms));
    }
  }
  if (const std::optional<PairedEstimate> ratio = paired_ratio(ratios)) {
    run.prediction.residual = ratio->value - 1;
  }
}

/// Only weak scaling: there the work of a rank stays what was measured.
bool may_be_extrapolated(const Run& run) {
  return run.scaling == "weak" && run.kind == "stage" && run.several_processes() && run.has_speed();
}

/// By the stated network, or by one that was measured between nodes and that the replay confirms.
void extrapolate(const Run& run, const std::optional<Network>& network, Report& report) {
  std::vector<CommunicationModel> models;
  std::optional<double> compute_ms;
  if (network) {
    models = {stated_model(*network, AllReduceAlgorithm::kRing),
              stated_model(*network, AllReduceAlgorithm::kTree)};
    compute_ms = run.no_comm_step_ms;
  } else if (run.nodes > 1) {
    models = models_of(report, run);
    compute_ms = run.prediction.compute_ms;
  }
  const Run* const baseline = report.baseline_of(run);
  for (const CommunicationModel& model : models) {
    for (const int world_size : kExtrapolatedWorldSizes) {
      const std::optional<double> comm_ms =
          all_reduces_ms(model, run.comm.bucket_bytes, world_size);
      if (!compute_ms || !comm_ms || world_size <= run.world_size) {
        continue;
      }
      const double step_ms = *compute_ms + *comm_ms;
      report.extrapolations.push_back(
          {run.name, *model.algorithm, world_size, step_ms, std::nullopt});
      if (baseline != nullptr) {
        report.extrapolations.back().efficiency = *baseline->step_ms.median / step_ms;
      }
    }
  }
}

/// Of each program, launcher and backend the largest world size that was measured.
bool is_largest(const Report& report, const Run& run) {
  const auto series = [](const Run& of) { return of.name.substr(0, of.name.rfind("/ranks:")); };
  return std::ranges::none_of(report.runs, [&](const Run& other) {
    return other.world_size > run.world_size && other.has_speed() && other.kind == run.kind &&
           series(other) == series(run);
  });
}

/// Of how the models were fitted.
std::vector<std::string> describe_models(const Report& report) {
  std::vector<std::string> lines;
  for (const CommunicationModel& model : report.communication_models) {
    if (!model.algorithm) {
      lines.push_back(fmt::format(
          "{}, {} ranks: alpha + bytes x beta, fitted to this report's all-reduce sweep. At one "
          "world size ring and tree cannot be told apart.",
          model.backend, model.world_sizes.front()));
      continue;
    }
    const bool only_one = std::ranges::count_if(report.communication_models, [&](const auto& one) {
                            return one.backend == model.backend && one.device == model.device;
                          }) == 1;
    std::string line =
        fmt::format("{}, {} ranks: the {} model was fitted to this report's sweep", model.backend,
                    fmt::join(model.world_sizes, ", "), to_string(*model.algorithm));
    line += only_one ? "." : "; the sweep does not tell ring and tree apart.";
    if (model.leave_one_out_error) {
      line += fmt::format(" Fitted without one of the world sizes it is off by up to {} there.",
                          format_percent(*model.leave_one_out_error));
    }
    lines.push_back(line);
  }
  return lines;
}

/// What the predictions and extrapolations take for granted.
std::vector<std::string> assumptions(const Report& report, const std::optional<Network>& network) {
  std::vector<std::string> lines = describe_models(report);
  const bool extrapolated = !report.extrapolations.empty();
  if (extrapolated || std::ranges::any_of(report.runs, [](const Run& run) {
        return run.prediction.comm_ms.value_or(0) > 0;
      })) {
    lines.push_back(
        "A step is its time without communication at the measured world size, plus one all-reduce "
        "after the other: no overlap.");
  }
  if (!extrapolated) {
    return lines;
  }
  append(
      lines,
      {"Ring: 2 (n - 1) alpha + 2 (n - 1) / n x bytes x beta. Tree: 2 log2(n) alpha + 2 x bytes x "
       "beta.",
       network ? fmt::format("Beyond the measured world sizes: a network of alpha {} us and {} "
                             "GB/s a link, as --network states it. It was not measured.",
                             format_shortest(network->alpha_us), format_shortest(network->gbps))
               : "Beyond the measured world sizes: links as good as those measured here.",
       "Every further rank has processors, memory and links of its own; no contention in the "
       "network, no stragglers.",
       "Only weak scaling is extrapolated: there a rank's work stays what was measured."});
  return lines;
}

/// Why there are no extrapolations, where a reader would look for some.
std::optional<std::string> why_not_extrapolated(const Report& report,
                                                const std::optional<Network>& network) {
  int most_nodes = 0;
  for (const Run& run : report.runs) {
    most_nodes = may_be_extrapolated(run) ? std::max(most_nodes, run.nodes) : most_nodes;
  }
  if (most_nodes == 0 || !report.extrapolations.empty()) {
    return std::nullopt;
  }
  if (network) {
    return "no run has a step without communication to start from";
  }
  return most_nodes > 1
             ? "no model of several world sizes that a replay confirms"
             : "the ranks share a host, which says nothing of a network: measure one with --nodes, "
               "or state one with --network";
}

/// Where no single number describes an all-reduce.
std::vector<std::string> describe_unsteady_sweeps(const Report& report) {
  struct Sizes {
    std::size_t measured = 0;
    std::vector<std::int64_t> unstable;
  };
  std::map<std::pair<std::string, int>, Sizes> sweeps;
  for (const AllReduceSample& sample : report.all_reduce) {
    Sizes& sizes = sweeps[{sample.backend, sample.world_size}];
    ++sizes.measured;
    if (sample.is_unstable()) {
      sizes.unstable.push_back(sample.bytes);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [sweep, sizes] : sweeps) {
    if (!sizes.unstable.empty()) {
      const auto [least, most] = std::ranges::minmax(sizes.unstable);
      lines.push_back(fmt::format(
          "The all-reduce sweep of {} on {} ranks is not steady: {} of {} sizes, of {} to {} "
          "bytes, "
          "took over 1.5x as long in one pass as in another (p90 over p10 of the passes)",
          sweep.first, sweep.second, sizes.unstable.size(), sizes.measured, least, most));
    }
  }
  return lines;
}

}  // namespace

std::optional<Limit> limit_of(const Report& report, const std::string& device, int world_size) {
  const auto own = std::ranges::find_if(report.limits, [&](const Limit& limit) {
    return limit.device == device && limit.world_size == world_size;
  });
  if (own == report.limits.end()) {
    return std::nullopt;
  }
  Limit found = *own;
  for (const Limit& limit : report.limits) {
    if (limit.device == device && limit.world_size > world_size) {
      keep_best(found, limit);
    }
  }
  return found;
}

Prediction predict_step(const Report& report, const Run& run) {
  Prediction prediction;
  const std::vector<CommunicationModel> models = models_of(report, run);
  for (const CommunicationModel& model : models) {
    const std::optional<double> comm_ms =
        all_reduces_ms(model, run.comm.bucket_bytes, run.world_size);
    if (!comm_ms || !run.no_comm_step_ms) {
      return {};
    }
    if (model.algorithm) {
      (*model.algorithm == AllReduceAlgorithm::kRing ? prediction.ring_step_ms
                                                     : prediction.tree_step_ms) =
          *run.no_comm_step_ms + *comm_ms;
    }
    if (!prediction.comm_ms) {
      if (const std::optional<std::string> reason = contradiction(run, *comm_ms)) {
        return {.reason = reason};
      }
      prediction.algorithm = models.size() == 1 ? model.algorithm : std::nullopt;
      prediction.compute_ms = run.no_comm_step_ms;
      prediction.comm_ms = comm_ms;
    }
  }
  return prediction;
}

void analyse(Report& report, const std::optional<Network>& network) {
  fit_models(report);
  for (Run& run : report.runs) {
    find_floor(report, run);
    predict(report, run);
    run.bound = bound_by(run);
  }
  for (const Run& run : report.runs) {
    if (may_be_extrapolated(run) && is_largest(report, run)) {
      extrapolate(run, network, report);
    }
  }
  report.assumptions = assumptions(report, network);
  if (const std::optional<std::string> reason = why_not_extrapolated(report, network)) {
    report.not_run.push_back({"predictions for more ranks", *reason});
  }
}

std::optional<std::string> bound_by(const Run& run) {
  if (!run.floor_ms || !run.step_ms.median) {
    return std::nullopt;
  }
  const std::optional<double> exposed_ms =
      run.several_processes() ? run.phases_ms[kExposedComm] : std::optional(0.0);
  if (!exposed_ms) {
    return std::nullopt;
  }
  const double late_ms = run.phases_ms[kImbalance].value_or(0);
  const double step_ms = *run.step_ms.median - late_ms;  // its own, without others' lateness
  if (*exposed_ms > step_ms / 2) {
    return "communication";
  }
  if (step_ms > kAllOverhead * *run.floor_ms) {
    return "overhead";
  }
  const double compute_ms = *run.floor.compute_ms;
  const double memory_ms = run.floor.memory_ms.value_or(0);
  const double work_ms = std::max(compute_ms, memory_ms);
  const double other_ms = step_ms - work_ms - *exposed_ms;
  return *exposed_ms > std::max(work_ms, other_ms) ? "communication"
         : other_ms > work_ms                      ? "overhead"
         : memory_ms > compute_ms                  ? "memory"
                                                   : "arithmetic";
}

std::vector<std::string> describe_predictions(const Report& report) {
  std::vector<std::string> lines;
  std::vector<const Run*> predicted;
  std::vector<const Run*> refused;
  for (const Run& run : report.runs) {
    if (run.kind == "stage" && run.several_processes() && run.prediction.residual) {
      predicted.push_back(&run);
    } else if (run.kind == "stage" && run.prediction.reason) {
      refused.push_back(&run);
    }
  }
  if (!predicted.empty()) {
    const Run* const worst = *std::ranges::max_element(
        predicted, {}, [](const Run* run) { return std::abs(*run->prediction.residual); });
    lines.push_back(fmt::format(
        "{} is off by {} ({}): the step without communication, and the all-reduces by an "
        "alpha-beta model",
        predicted.size() == 1 ? "The prediction"
                              : fmt::format("The worst of {} predictions", predicted.size()),
        format_percent(std::abs(*worst->prediction.residual)), worst->name));
  }
  if (!refused.empty()) {
    lines.push_back(fmt::format(
        "No prediction of {}: {}{}", refused.front()->name, *refused.front()->prediction.reason,
        refused.size() == 1 ? "" : fmt::format("; nor of {} more", refused.size() - 1)));
  }
  append(lines, describe_unsteady_sweeps(report));
  return lines;
}

}  // namespace ddp::bench
