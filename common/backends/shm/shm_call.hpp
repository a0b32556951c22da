// common/backends/shm/shm_call.hpp - a rank's call, which the other ranks compare with their own.
#pragma once

#include <cstdint>
#include <string>

#include "common/backends/communicator.hpp"

namespace ddp::shm {

enum class Operation : uint8_t { kBarrier, kAllReduce, kBroadcast, kAllGather };

/// Collective call, for messages and for the comparison between ranks over shared memory: two calls
/// fit into a cache line, beside a counter.
struct [[gnu::packed, gnu::aligned(4)]] Call {
  uint32_t sequence = 0;  ///< number of collectives so far, this call included; wraps
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kByte;
  ReduceOp reduce_op = ReduceOp::kSum;  ///< for kAllReduce
  uint8_t root = 0;  ///< for kBroadcast
  uint64_t count = 0;  ///< elements of each rank
  // Place of the rank's elements; may differ between ranks.
  uint32_t region = 0;  ///< 0: in memory that is not shared
  uint64_t region_offset = 0;  ///< bytes
};

/// "all_reduce sum of 100 float32"
std::string to_string(const Call& call);

}  // namespace ddp::shm
