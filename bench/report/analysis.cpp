#include "bench/report/analysis.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "bench/report/format.hpp"

namespace ddp::bench {
namespace {

const CommunicationModel* find_model(const Report& report, const Configuration& configuration,
                                     AllReduceAlgorithm algorithm) {
  for (const CommunicationModel& model : report.communication_models) {
    if (model.backend == configuration.backend && model.device == configuration.device &&
        model.algorithm == algorithm) {
      return &model;
    }
  }
  return nullptr;
}

std::optional<double> communication_ms(const CommunicationModel* model, const Result& result,
                                       int world_size) {
  if (model == nullptr || result.bucket_bytes.empty()) {
    return std::nullopt;
  }
  double total_us = 0;
  for (const double bytes : result.bucket_bytes) {
    const std::optional<double> time_us = model->predict_us(bytes, world_size);
    if (!time_us) {
      return std::nullopt;
    }
    total_us += *time_us;
  }
  return total_us / 1e3;
}

void fit_models(Report& report) {
  report.communication_models.clear();
  std::set<std::pair<std::string, std::string>> measured;
  for (const AllReduceSample& sample : report.micro.all_reduce) {
    measured.emplace(sample.backend, sample.device);
  }
  for (const auto& [backend, device] : measured) {
    for (const AllReduceAlgorithm algorithm :
         {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree}) {
      if (const auto model =
              fit_communication_model(backend, device, algorithm, report.micro.all_reduce)) {
        report.communication_models.push_back(*model);
      }
    }
  }
}

/// The best bus bandwidth that any backend reached at this world size, in bytes a second.
std::optional<double> best_bus_bandwidth(const Report& report, const Configuration& configuration) {
  std::optional<double> best;
  const double ranks = configuration.world_size;
  for (const AllReduceSample& sample : report.micro.all_reduce) {
    if (sample.world_size == configuration.world_size && sample.device == configuration.device &&
        sample.time_us.median && *sample.time_us.median > 0) {
      const double bandwidth = static_cast<double>(sample.bytes) / (*sample.time_us.median / 1e6) *
                               2 * (ranks - 1) / ranks;
      best = std::max(best.value_or(0), bandwidth);
    }
  }
  return best;
}

double parameter_bytes(const std::vector<std::int64_t>& layers) {
  constexpr double kBytesOfFloat = 4;
  double parameters = 0;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    parameters += static_cast<double>((layers[i] + 1) * layers[i + 1]);
  }
  return kBytesOfFloat * parameters;
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

std::optional<Floor> floor_of(const Report& report, const Result& result) {
  const Configuration& configuration = result.configuration;
  const Limit* limit = nullptr;
  for (const Limit& candidate : report.micro.limits) {
    if (candidate.device == configuration.device &&
        candidate.world_size == configuration.world_size) {
      limit = &candidate;
    }
  }
  if (limit == nullptr || !limit->fp32_gflops || !limit->memory_bandwidth_gbps ||
      !result.has_speed()) {
    return std::nullopt;
  }
  const std::vector<std::int64_t>& layers = configuration.workload.layers;
  const double batch_per_rank =
      static_cast<double>(configuration.global_batch) / configuration.world_size;
  Floor floor;
  floor.compute_ms = step_flop(layers, batch_per_rank) / (*limit->fp32_gflops * 1e9) * 1e3;
  const bool in_cache = 2 * parameter_bytes(layers) <= largest_cache_bytes(configuration.device);
  floor.memory_ms = in_cache ? 0 : step_bytes(layers) / (*limit->memory_bandwidth_gbps * 1e9) * 1e3;
  if (configuration.communicates()) {
    const std::optional<double> bandwidth = best_bus_bandwidth(report, configuration);
    const std::optional<double> bytes = result.bytes_per_step();
    if (!bandwidth || !bytes) {
      return std::nullopt;
    }
    const double ranks = configuration.world_size;
    floor.comm_ms = *bytes * 2 * (ranks - 1) / ranks / *bandwidth * 1e3;
  }
  return floor;
}

std::optional<Prediction> prediction_of(const Report& report, const Result& result) {
  const Configuration& configuration = result.configuration;
  const bool data_parallel_processes = configuration.program.start == Start::kSpawn ||
                                       configuration.program.start == Start::kLauncher;
  if (!result.has_speed() || !data_parallel_processes || configuration.role == Role::kPeer) {
    return std::nullopt;
  }
  Prediction prediction;
  if (configuration.world_size == 1) {
    // What stage 01 takes; communication is nothing.
    const Result* const baseline = report.baseline_of(result);
    const std::optional<double> median_ms =
        baseline == nullptr ? std::nullopt : baseline->step_ms().median;
    if (!median_ms) {
      return std::nullopt;
    }
    prediction.compute_ms = *median_ms;
    return prediction;
  }
  const CommunicationModel* const ring =
      find_model(report, configuration, AllReduceAlgorithm::kRing);
  const CommunicationModel* const tree =
      find_model(report, configuration, AllReduceAlgorithm::kTree);
  const std::optional<double> ring_ms = communication_ms(ring, result, configuration.world_size);
  const std::optional<double> tree_ms = communication_ms(tree, result, configuration.world_size);
  if (!result.no_comm_step_ms || (!ring_ms && !tree_ms)) {
    return std::nullopt;
  }
  prediction.compute_ms = *result.no_comm_step_ms;
  const bool use_tree =
      tree_ms && (!ring_ms || tree->median_relative_error < ring->median_relative_error);
  prediction.algorithm = use_tree ? AllReduceAlgorithm::kTree : AllReduceAlgorithm::kRing;
  prediction.comm_ms = use_tree ? *tree_ms : *ring_ms;
  if (ring_ms) {
    prediction.ring_step_ms = prediction.compute_ms + *ring_ms;
  }
  if (tree_ms) {
    prediction.tree_step_ms = prediction.compute_ms + *tree_ms;
  }
  return prediction;
}

/// Only weak scaling: there the work of a rank stays what was measured.
void extrapolate(const Result& result, Report& report) {
  const Configuration& configuration = result.configuration;
  if (configuration.scaling != "weak" || configuration.role != Role::kStage ||
      !configuration.communicates() || !result.prediction) {
    return;
  }
  const Result* const baseline = report.baseline_of(result);
  for (const AllReduceAlgorithm algorithm :
       {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree}) {
    const CommunicationModel* const model = find_model(report, configuration, algorithm);
    for (const int world_size : kExtrapolatedWorldSizes) {
      const std::optional<double> comm_ms = communication_ms(model, result, world_size);
      if (!comm_ms || world_size <= configuration.world_size) {
        continue;
      }
      Extrapolation extrapolation;
      extrapolation.from = configuration.name();
      extrapolation.algorithm = algorithm;
      extrapolation.world_size = world_size;
      extrapolation.step_ms = result.prediction->compute_ms + *comm_ms;
      if (baseline != nullptr) {
        extrapolation.efficiency = *baseline->step_ms().median / extrapolation.step_ms;
      }
      report.extrapolations.push_back(extrapolation);
    }
  }
}

/// Of each program, launcher and backend the largest world size that was measured.
bool is_largest(const Report& report, const Result& result) {
  return std::none_of(report.results.begin(), report.results.end(), [&](const Result& other) {
    Configuration same = other.configuration;
    same.world_size = result.configuration.world_size;
    return other.configuration.world_size > result.configuration.world_size && other.has_speed() &&
           same.name() == result.configuration.name();
  });
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

double step_bytes(const std::vector<std::int64_t>& layers) {
  constexpr double kPassesOverParameters = 6;
  return kPassesOverParameters * parameter_bytes(layers);
}

void analyse(Report& report) {
  fit_models(report);
  report.extrapolations.clear();
  for (Result& result : report.results) {
    result.floor = floor_of(report, result);
    result.prediction = prediction_of(report, result);
  }
  for (const Result& result : report.results) {
    if (is_largest(report, result)) {
      extrapolate(result, report);
    }
  }
}

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
      lines.push_back("With " + model.backend + " only world size " +
                      std::to_string(model.world_sizes.front()) +
                      " was measured, at which ring and tree differ by a constant only: which of "
                      "them holds at scale is not known.");
    }
  }
  return lines;
}

std::optional<double> median_residual(const Report& report) {
  std::vector<double> residuals;
  for (const Result& result : report.results) {
    const bool row = result.configuration.role == Role::kStage;
    if (const std::optional<double> residual = result.residual();
        row && residual && result.configuration.communicates()) {
      residuals.push_back(std::abs(*residual));
    }
  }
  return median(residuals);
}

}  // namespace ddp::bench
