// bench/report/analysis.hpp - what was measured, against the machine's limits and a model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// Arithmetic of one training step of a multi-layer perceptron on one rank: forward 2 b in out for
/// each layer, as much again for the weights' gradients, and for the inputs' except in the first.
double step_flop(const std::vector<std::int64_t>& layers, double batch_per_rank);

/// Weights and biases.
std::int64_t count_parameters(const std::vector<std::int64_t>& layers);

/// Least memory traffic of a step: weights read forward and backward, gradients written, and read
/// again with the weights by the update, which writes the weights. Activations are not counted.
double step_bytes(const std::vector<std::int64_t>& layers);

/// Fits the communication models to report.all_reduce and fills each run's floor and prediction,
/// the extrapolations, and what both take for granted.
void analyse(Report& report);

/// Median of |residual| over runs of several ranks; none without such a run.
std::optional<double> median_residual(const Report& report);

}  // namespace ddp::bench
