// tests/backends/backend_conformance.hpp - checks the collectives of a c10d backend, and runs ranks
// as threads.
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <string>

namespace ddp::test {

/// Collective. Runs every collective with every type and with odd sizes, and checks what this
/// backend promises beyond that.
/// @return number of compared results
/// @throws c10::Error naming the first wrong result
int check_collectives(c10d::Backend& backend);

/// Runs `body` on ranks, as threads, connected by make_backend(name). Rethrows the first exception
/// of a rank when all ranks have ended.
void run_backends(int world_size, const std::string& name,
                  const std::function<void(c10d::Backend& backend)>& body);

}  // namespace ddp::test
