// bench/report/step_cost.hpp - what a training step of a multi-layer perceptron costs a rank,
// counted and not measured: arithmetic, memory traffic, memory, bytes that travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/catalog.hpp"
#include "bench/report/fields.hpp"
#include "bench/report/record.hpp"

namespace ddp::bench {

/// Forward 2 b in out for each layer.
double forward_flop(const std::vector<std::int64_t>& layers, double batch_per_rank);
/// Of one layer: as much again for the weights' gradients, and for the inputs' except in the first.
double backward_flop(const std::vector<std::int64_t>& layers, std::size_t layer,
                     double batch_per_rank);
/// Forward, and backward through all layers.
double step_flop(const std::vector<std::int64_t>& layers, double batch_per_rank);

/// Weights and biases.
std::int64_t count_parameters(const std::vector<std::int64_t>& layers);

/// Of float32 values.
double parameter_bytes(const std::vector<std::int64_t>& layers);

/// Least memory traffic of a step: weights read forward and, except the first layer's, backward,
/// gradients written, and read again with the weights by SGD's update, which writes the weights.
/// Activations are not counted.
double step_bytes(const std::vector<std::int64_t>& layers);

/// What an optimizer keeps of each parameter.
/// @param optimizer "sgd", "momentum", "adam", "adamw"
int kept_values(const std::string& optimizer);

/// Values that an update reads or writes per parameter: the weight twice, the gradient once, and
/// each of the optimizer's own twice.
inline int updated_values(const std::string& optimizer) {
  return 3 + 2 * kept_values(optimizer);
}

/// The best rate that was measured with as many bytes as are worked on, with more, or with the next
/// fewer, since caches are the slower the more they hold; the best of all if none has as few bytes.
/// @return nothing if no such rate is known
std::optional<double> memory_gbps(const std::vector<MemoryRate>& rates, double working_set_bytes);

/// Gradients that are all-reduced together.
struct Bucket {
  double bytes = 0;  ///< that travel: fewer than the gradients have if they are compressed
  double weight_bytes = 0;  ///< of the same parameters, whole
  double part_bytes = 0;  ///< of these, what the largest part has that a rank of a sharded
                          ///< optimizer keeps; without one all
  std::size_t layer = 0;  ///< whose backward completes it
};

/// In the order in which backward fills them. One rank has them too, and sends none.
std::vector<Bucket> count_buckets(const std::vector<std::int64_t>& layers,
                                  const Gradients& gradients, int world_size);

/// What travels of each.
std::vector<double> bytes_of(const std::vector<Bucket>& buckets);

/// Bytes that training adds to what a process has anyway, on the rank that has most.
struct StepMemory {
  double weights = 0;
  double gradients = 0;
  double optimizer_state = 0;
  double activations = 0;  ///< kept from forward for backward, with the batch
  double buckets = 0;  ///< beside the gradients, of which they are ranges
  double total = 0;
  DDP_FIELDS(weights, gradients, optimizer_state, activations, buckets, total);
};

StepMemory count_memory(const std::vector<std::int64_t>& layers, double batch_per_rank,
                        const std::string& optimizer, const Gradients& gradients, int world_size);

}  // namespace ddp::bench
