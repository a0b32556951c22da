// common/training/optimizer.hpp - makes the optimizer of --optimizer, and names its tensors.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "common/data/tensor_file.hpp"
#include "common/launch/options.hpp"

namespace ddp {

/// The optimizer of LibTorch that --optimizer names: SGD, SGD with momentum 0.9, Adam or AdamW.
/// @throws UsageError for another name
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::vector<torch::Tensor>& parameters, const TrainOptions& options);

/// State by parameter, named as in Python's state_dict(): "state.0.momentum_buffer". Empty for
/// plain SGD, and before the first step.
/// @throws UsageError unless it is SGD, Adam or AdamW
NamedTensors named_state(torch::optim::Optimizer& optimizer);

/// Puts the tensors into an optimizer that has the same parameters in the same order.
/// @throws c10::Error if a tensor does not fit its parameter
void load_named_state(torch::optim::Optimizer& optimizer, const NamedTensors& state);

}  // namespace ddp
