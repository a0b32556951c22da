// bench/report/analysis.hpp - what was measured, against the machine's limits and a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// Arithmetic of one training step of a multi-layer perceptron on one rank: forward 2 b in out for
/// each layer, as much again for the weights' gradients, and for the inputs' except in the first.
double step_flop(const std::vector<std::int64_t>& layers, double batch_per_rank);

/// Weights and biases.
std::int64_t count_parameters(const std::vector<std::int64_t>& layers);

/// Least memory traffic of a step: weights read forward and, except the first layer's, backward,
/// gradients written, and read again with the weights by the update, which writes the weights.
/// Activations are not counted.
double step_bytes(const std::vector<std::int64_t>& layers);

/// Of a network that was not measured, for each message and each link.
struct Network {
  double alpha_us = 0;
  double gbps = 0;  ///< 1e9 bytes per second
};

/// Fits the communication models to report.all_reduce and fills each run's floor, prediction and
/// bound, the extrapolations, and what these take for granted or why there are none.
/// @param network to extrapolate with, if it was stated
void analyse(Report& report, const std::optional<Network>& network);

/// Over so many floors a step is overhead, whatever else there is.
inline constexpr double kAllOverhead = 20;

/// The largest part of the median step: "communication", which the rank waits for; "arithmetic" or
/// "memory", whichever part of the floor is larger; or "overhead", all the rest, and in any case
/// where the step takes more than kAllOverhead times its floor. Nothing if the parts are not known.
std::optional<std::string> bound_by(const Run& run);

/// Sentences without their full stops: how far the worst prediction is off, which steps have none
/// for what reason, and where the sweep was not steady.
std::vector<std::string> describe_predictions(const Report& report);

}  // namespace ddp::bench
