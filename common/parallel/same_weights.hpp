// common/parallel/same_weights.hpp - compares the ranks' weights.
#pragma once

#include <torch/nn/module.h>

#include "common/parallel/default_group.hpp"

namespace ddp {

/// Collective. Checks that all ranks' weights have the same bits, unless --no-communication was
/// given.
/// @throws Error (1), on all ranks, naming the ranks that differ from rank 0
void expect_same_weights(const torch::nn::Module& module,
                         const CallSite& site = CallSite::current());

}  // namespace ddp
