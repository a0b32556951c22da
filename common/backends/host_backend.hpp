// common/backends/host_backend.hpp - a Communicator as a c10d::Backend.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <memory>
#include <string>

#include "common/backends/shm/communicator.hpp"

namespace ddp {

/// LibTorch's types, by DType.
inline constexpr std::array kScalarTypes = {at::kFloat,    at::kDouble, at::kHalf,
                                            at::kBFloat16, at::kInt,    at::kLong,
                                            at::kChar,     at::kByte,   at::kBool};

/// c10d's operations, by ReduceOp.
inline constexpr std::array kReduceOps = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG,
                                          c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN,
                                          c10d::ReduceOp::MAX};

/// What becomes of the tensors of a GPU.
enum class GpuTensors {
  kRefused,
  kStaged,  ///< copied to the host and back
  kDirect,  ///< the same, but sums of float and double are left to the communicator
};

/// What c10d, its Reducer and our ProcessGroup call. Collectives are done by the calling thread:
/// what they return is complete, and they throw themselves. Tensors that are not contiguous are
/// copied there and back.
/// @param name as --backend has it
c10::intrusive_ptr<c10d::Backend> make_host_backend(const std::string& name,
                                                    std::unique_ptr<Communicator> communicator,
                                                    GpuTensors gpu_tensors = GpuTensors::kRefused);

}  // namespace ddp
