// tests/support/collective_checks.hpp - a c10d backend's collectives against what they must give.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::test {

/// Collective. Every rank knows what every rank contributes, and computes the results by itself.
/// @return how many results were compared
/// @throws c10::Error naming the first that is wrong
int check_collectives(c10d::Backend& backend);

}  // namespace ddp::test
