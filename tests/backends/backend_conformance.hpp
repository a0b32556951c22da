// tests/backends/backend_conformance.hpp - checks the collectives of a c10d backend.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace ddp::test {

/// Collective. Runs every collective with every type and with odd sizes, and checks what this
/// backend promises beyond that.
/// @return number of compared results
/// @throws c10::Error naming the first wrong result
int check_collectives(c10d::Backend& backend);

}  // namespace ddp::test
