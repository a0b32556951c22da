// common/backends/host_backend.hpp - a Communicator as a c10d::Backend.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

#include "common/backends/communicator.hpp"

namespace ddp {

/// All-reduce (SUM, AVG, MAX, MIN), broadcast, all-gather, reduce-scatter and barrier, done by the
/// calling thread: a call returns completed work, or throws. Tensors on another device or with gaps
/// are copied to host memory and back. Sums of float16 and bfloat16 are computed in float32, sums
/// of small integers and truth values in int64, and then rounded. AVG is for floating-point numbers
/// only.
/// @param name value of --backend
c10::intrusive_ptr<c10d::Backend> make_host_backend(const std::string& name,
                                                    std::unique_ptr<Communicator> communicator);

/// Communicator::stop() of a backend that make_host_backend() made; no effect on others.
void stop_host_backend(c10d::Backend& backend, Stop stop);

}  // namespace ddp
