#include "bench/report/step_cost.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "common/model/flat_layout.hpp"
#include "common/parallel/bucket_ranges.hpp"

namespace ddp::bench {
namespace {

constexpr std::int64_t kBytesOfFloat = 4;
constexpr std::int64_t kBytesOfHalf = 2;

/// Of the product forward; each of the two backward has as many.
double product_flop(const std::vector<std::int64_t>& layers, std::size_t layer, double batch) {
  return 2 * batch * static_cast<double>(layers[layer]) * static_cast<double>(layers[layer + 1]);
}

/// As the stages' model has it: of each layer the weights, then the biases.
FlatLayout layout_of(const std::vector<std::int64_t>& layers) {
  FlatLayout layout;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    layout.add(layers[i] * layers[i + 1], kBytesOfFloat);
    layout.add(layers[i + 1], kBytesOfFloat);
  }
  return layout;
}

}  // namespace

double forward_flop(const std::vector<std::int64_t>& layers, double batch_per_rank) {
  double flop = 0;
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    flop += product_flop(layers, i, batch_per_rank);
  }
  return flop;
}

double backward_flop(const std::vector<std::int64_t>& layers, std::size_t layer,
                     double batch_per_rank) {
  return (layer == 0 ? 1 : 2) * product_flop(layers, layer, batch_per_rank);
}

double step_flop(const std::vector<std::int64_t>& layers, double batch_per_rank) {
  double flop = forward_flop(layers, batch_per_rank);
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    flop += backward_flop(layers, i, batch_per_rank);
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

double parameter_bytes(const std::vector<std::int64_t>& layers) {
  return static_cast<double>(kBytesOfFloat * count_parameters(layers));
}

double step_bytes(const std::vector<std::int64_t>& layers) {
  constexpr double kPassesOverParameters = 6;
  // The first layer's input has no gradient, so its weights are not read backward.
  const auto first_weights = static_cast<double>(kBytesOfFloat * layers[0] * layers[1]);
  return kPassesOverParameters * parameter_bytes(layers) - first_weights;
}

int kept_values(const std::string& optimizer) {
  return optimizer == "sgd" ? 0 : optimizer == "momentum" ? 1 : 2;
}

std::optional<double> memory_gbps(const std::vector<MemoryRate>& rates, double working_set_bytes) {
  std::optional<double> best;
  for (const MemoryRate& rate : rates) {
    const bool next_fewer_or_as_many = static_cast<double>(rate.bytes) <= working_set_bytes;
    best = next_fewer_or_as_many ? rate.gbps : std::max(best, rate.gbps);
  }
  return best && *best > 0 ? best : std::nullopt;
}

std::vector<Bucket> count_buckets(const std::vector<std::int64_t>& layers,
                                  const Gradients& gradients, int world_size) {
  const std::int64_t bytes_that_travel =
      gradients.compression == "none" ? kBytesOfFloat : kBytesOfHalf;
  std::vector<Bucket> buckets;
  for (const BucketRange& range :
       bucket_ranges(layout_of(layers), kBytesOfFloat, bucket_sizes(gradients.bucket_mib))) {
    const std::int64_t elements = range.end - range.begin;
    const auto [begin, end] = part_range(elements, 0, gradients.shard_optimizer ? world_size : 1);
    buckets.push_back({.bytes = static_cast<double>(elements * bytes_that_travel),
                       .weight_bytes = static_cast<double>(elements * kBytesOfFloat),
                       .part_bytes = static_cast<double>((end - begin) * kBytesOfFloat),
                       .layer = range.first_parameter / 2});
  }
  return buckets;
}

std::vector<double> bytes_of(const std::vector<Bucket>& buckets) {
  std::vector<double> bytes;
  std::ranges::transform(buckets, std::back_inserter(bytes), &Bucket::bytes);
  return bytes;
}

StepMemory count_memory(const std::vector<std::int64_t>& layers, double batch_per_rank,
                        const std::string& optimizer, const Gradients& gradients, int world_size) {
  StepMemory memory;
  memory.weights = static_cast<double>(kBytesOfFloat * layout_of(layers).total);
  memory.gradients = memory.weights;
  for (const Bucket& bucket : count_buckets(layers, gradients, world_size)) {
    memory.optimizer_state += kept_values(optimizer) * bucket.part_bytes;
    memory.buckets += gradients.compression == "none" || world_size == 1 ? 0 : bucket.bytes;
  }
  // Adam counts its steps.
  memory.optimizer_state += kept_values(optimizer) > 1 ? static_cast<double>(kBytesOfFloat) : 0;
  // Each layer's input, and what the loss keeps of the output; ReLU keeps its result, which is the
  // next layer's input.
  const auto values = static_cast<double>(std::reduce(layers.begin(), layers.end()));
  memory.activations = batch_per_rank * values * static_cast<double>(kBytesOfFloat);
  memory.total = memory.weights + memory.gradients + memory.optimizer_state + memory.activations +
                 memory.buckets;
  return memory;
}

}  // namespace ddp::bench
