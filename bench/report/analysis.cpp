#include "bench/report/analysis.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "bench/report/catalog.hpp"
#include "bench/report/communication_model.hpp"

namespace ddp::bench {
namespace {

/// World sizes that the model is asked about beyond the measured ones.
constexpr int kExtrapolatedWorldSizes[] = {8, 64, 256, 1024};

constexpr std::array kAlgorithms = {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree};

const CommunicationModel* find_model(const Report& report, const Run& run,
                                     AllReduceAlgorithm algorithm) {
  return find_first(report.communication_models, [&](const CommunicationModel& model) {
    return model.backend == run.backend && model.device == run.device &&
           model.algorithm == algorithm;
  });
}

std::optional<double> communication_ms(const CommunicationModel* model, const Run& run,
                                       int world_size) {
  if (model == nullptr || run.comm.bucket_bytes.empty()) {
    return std::nullopt;
  }
  double total_us = 0;
  for (const double bytes : run.comm.bucket_bytes) {
    const std::optional<double> time_us = model->predict_us(bytes, world_size);
    if (!time_us) {
      return std::nullopt;
    }
    total_us += *time_us;
  }
  return total_us / 1e3;
}

void fit_models(Report& report) {
  std::set<std::pair<std::string, std::string>> measured;
  for (const AllReduceSample& sample : report.all_reduce) {
    measured.emplace(sample.backend, sample.device);
  }
  for (const auto& [backend, device] : measured) {
    for (const AllReduceAlgorithm algorithm : kAlgorithms) {
      if (const auto model =
              fit_communication_model(backend, device, algorithm, report.all_reduce)) {
        report.communication_models.push_back(*model);
      }
    }
  }
}

/// The best bus bandwidth that any backend reached at this world size, in GB/s (1e9).
std::optional<double> best_bus_bandwidth_gbps(const Report& report, const Run& run) {
  std::optional<double> best;
  for (const AllReduceSample& sample : report.all_reduce) {
    if (sample.world_size == run.world_size && sample.device == run.device &&
        sample.bus_bandwidth_gbps) {
      best = std::max(best.value_or(0), *sample.bus_bandwidth_gbps);
    }
  }
  return best;
}

double parameter_bytes(const std::vector<std::int64_t>& layers) {
  constexpr double kBytesOfFloat = 4;
  return kBytesOfFloat * static_cast<double>(count_parameters(layers));
}

/// Weights and gradients that fit in here need not travel to memory between steps.
double largest_cache_bytes(const std::string& device) {
  constexpr double kLargestGpuCacheBytes = 64 << 20;  // H100's and H200's is 50 MB
  if (device != "cpu") {
    return kLargestGpuCacheBytes;
  }
  return static_cast<double>(
      std::max({sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE), 0L}));
}

void find_floor(const Report& report, Run& run) {
  const Limit* const limit = find_first(report.limits, [&](const Limit& candidate) {
    return candidate.device == run.device && candidate.world_size == run.world_size;
  });
  const Workload* const workload = find_workload(run.model);
  if (!run.has_speed() || workload == nullptr || limit == nullptr || !limit->fp32_gflops ||
      !limit->memory_bandwidth_gbps) {
    return;
  }
  const std::vector<std::int64_t>& layers = workload->layers;
  const double batch_per_rank = static_cast<double>(run.global_batch) / run.world_size;
  const double compute_ms = step_flop(layers, batch_per_rank) / (*limit->fp32_gflops * 1e9) * 1e3;
  const bool in_cache = 2 * parameter_bytes(layers) <= largest_cache_bytes(run.device);
  const double memory_ms =
      in_cache ? 0 : step_bytes(layers) / (*limit->memory_bandwidth_gbps * 1e9) * 1e3;
  double comm_ms = 0;
  if (run.several_processes()) {
    const std::optional<double> bandwidth_gbps = best_bus_bandwidth_gbps(report, run);
    if (!bandwidth_gbps || !run.comm.bytes_per_step) {
      return;
    }
    comm_ms = *run.comm.bytes_per_step * bus_factor(run.world_size) / (*bandwidth_gbps * 1e9) * 1e3;
  }
  run.floor = {.compute_ms = compute_ms, .memory_ms = memory_ms, .comm_ms = comm_ms};
  run.floor_ms = std::max(compute_ms, memory_ms) + comm_ms;
}

/// What communication adds to the step without it, where that can be told.
void predict(const Report& report, Run& run) {
  if (!run.has_speed() || run.launcher == "none" || run.is_peer()) {
    return;
  }
  Prediction prediction = {.algorithm = AllReduceAlgorithm::kRing, .comm_ms = 0};
  if (run.world_size == 1) {
    const Run* const baseline = report.baseline_of(run);
    prediction.compute_ms = baseline == nullptr ? std::nullopt : baseline->step_ms.median;
  } else {
    const CommunicationModel* const ring = find_model(report, run, AllReduceAlgorithm::kRing);
    const CommunicationModel* const tree = find_model(report, run, AllReduceAlgorithm::kTree);
    const std::optional<double> ring_ms = communication_ms(ring, run, run.world_size);
    const std::optional<double> tree_ms = communication_ms(tree, run, run.world_size);
    if (run.no_comm_step_ms && ring_ms && tree_ms) {
      const bool use_tree = tree->median_relative_error < ring->median_relative_error;
      prediction = {
          .algorithm = use_tree ? AllReduceAlgorithm::kTree : AllReduceAlgorithm::kRing,
          .compute_ms = run.no_comm_step_ms,
          .comm_ms = use_tree ? *tree_ms : *ring_ms,
          .ring_step_ms = *run.no_comm_step_ms + *ring_ms,
          .tree_step_ms = *run.no_comm_step_ms + *tree_ms,
      };
    }
  }
  if (!prediction.compute_ms) {
    return;
  }
  run.predicted_step_ms = *prediction.compute_ms + *prediction.comm_ms;
  if (*run.predicted_step_ms > 0) {
    prediction.residual = *run.step_ms.median / *run.predicted_step_ms - 1;
  }
  run.prediction = prediction;
}

/// Only weak scaling: there the work of a rank stays what was measured.
void extrapolate(const Run& run, Report& report) {
  if (run.scaling != "weak" || run.kind != "stage" || !run.several_processes() ||
      !run.predicted_step_ms) {
    return;
  }
  const Run* const baseline = report.baseline_of(run);
  for (const AllReduceAlgorithm algorithm : kAlgorithms) {
    const CommunicationModel* const model = find_model(report, run, algorithm);
    for (const int world_size : kExtrapolatedWorldSizes) {
      const std::optional<double> comm_ms = communication_ms(model, run, world_size);
      if (!comm_ms || world_size <= run.world_size) {
        continue;
      }
      const double step_ms = *run.prediction.compute_ms + *comm_ms;
      report.extrapolations.push_back({run.name, algorithm, world_size, step_ms, std::nullopt});
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

/// What the predictions and extrapolations take for granted.
std::vector<std::string> assumptions(const Report& report) {
  std::vector<std::string> lines = {
      "A step is its time without communication at the measured world size, plus one all-reduce "
      "after the other: no overlap.",
      "Ring: 2 (n - 1) alpha + 2 (n - 1) / n x bytes x beta. Tree: 2 log2(n) alpha + 2 x bytes x "
      "beta. alpha and beta are fitted to this report's all-reduce sweep, by range of sizes.",
      "Beyond the measured world sizes: every further rank has processors, memory and links of its "
      "own, as good as those measured here; no contention in the network, no stragglers.",
      "Only weak scaling is extrapolated: there a rank's work stays what was measured.",
  };
  for (const CommunicationModel& model : report.communication_models) {
    if (model.algorithm == AllReduceAlgorithm::kRing && model.world_sizes.size() == 1) {
      lines.push_back(
          fmt::format("With {} only world size {} was measured, at which ring and tree differ by a "
                      "constant only: which of them holds at scale is not known.",
                      model.backend, model.world_sizes.front()));
    }
  }
  return lines;
}

}  // namespace

double step_flop(const std::vector<std::int64_t>& layers, double batch_per_rank) {
  double flop = 0;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    const double product =
        2 * batch_per_rank * static_cast<double>(layers[i]) * static_cast<double>(layers[i + 1]);
    flop += (i == 0 ? 2 : 3) * product;
  }
  return flop;
}

std::int64_t count_parameters(const std::vector<std::int64_t>& layers) {
  std::int64_t parameters = 0;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    parameters += (layers[i] + 1) * layers[i + 1];
  }
  return parameters;
}

double step_bytes(const std::vector<std::int64_t>& layers) {
  constexpr double kPassesOverParameters = 6;
  return kPassesOverParameters * parameter_bytes(layers);
}

void analyse(Report& report) {
  fit_models(report);
  for (Run& run : report.runs) {
    find_floor(report, run);
    predict(report, run);
  }
  for (const Run& run : report.runs) {
    if (is_largest(report, run)) {
      extrapolate(run, report);
    }
  }
  report.assumptions = assumptions(report);
}

std::optional<double> median_residual(const Report& report) {
  std::vector<double> residuals;
  for (const Run& run : report.runs) {
    if (run.kind == "stage" && run.several_processes() && run.prediction.residual) {
      residuals.push_back(std::abs(*run.prediction.residual));
    }
  }
  return median(residuals);
}

}  // namespace ddp::bench
