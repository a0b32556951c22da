// common/backends/host_backend.hpp - a Communicator as a c10d::Backend.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>

#include "common/backends/shm/communicator.hpp"

namespace ddp {

/// All-reduce (SUM, AVG, MAX, MIN), broadcast, all-gather and barrier, done by the calling thread:
/// the work that they return is complete, and they throw themselves. Tensors on another device or
/// with gaps are copied there and back. Sums of float16 and bfloat16 are computed in float32, sums
/// of small integers and truth values in int64, and then rounded; AVG is of floating-point numbers.
/// @param name as --backend has it
c10::intrusive_ptr<c10d::Backend> make_host_backend(const std::string& name,
                                                    std::unique_ptr<Communicator> communicator);

}  // namespace ddp
