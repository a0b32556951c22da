// common/parallel/model_check.hpp - all ranks have the same model, before training and after it.
#pragma once

#include <torch/nn/module.h>

#include "common/data/tensor_file.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp {

/// @return the items whose names are not in `ignored`
NamedTensors kept(const torch::OrderedDict<std::string, torch::Tensor>& items,
                  const std::vector<std::string>& ignored);

/// Refuses a second owner of a parameter: both would sum its gradient in the same memory.
/// @return marks the module's parameters, but the ignored ones, as taken while it lives
/// @throws UsageError naming a parameter that is taken already
std::shared_ptr<void> take_parameters(const torch::nn::Module& module,
                                      const std::vector<std::string>& ignored);

/// Collective. Compares the ranks' models, because with different models the collectives would hang
/// or abort. @param settings lines that must be the same, too
/// @return the parameters to average: those that learn and are not ignored
/// @throws UsageError naming the first difference, a tensor that cannot be sent, or an unknown name
/// in `ignored`; or if there are no such parameters
std::vector<torch::Tensor> same_parameters(const torch::nn::Module& module,
                                           const ProcessGroup& process_group,
                                           const std::vector<std::string>& ignored,
                                           const std::string& settings);

/// Collective. Checks that all ranks' weights have the same bits, unless with --no-communication.
/// @throws Error (1), on all ranks, naming the ranks that differ from rank 0
void expect_same_weights(const torch::nn::Module& module,
                         const CallSite& site = CallSite::current());

}  // namespace ddp
