// common/backends/shm/shm_types.hpp - the limits of collectives over shared memory.
#pragma once

#include "common/backends/shm/collective_types.hpp"

namespace ddp::shm {

/// More processes on one host are refused.
inline constexpr int kMaxRanks = 64;

using ddp::DType;
using ddp::element_bytes;
using ddp::Exchange;
using ddp::is_supported;
using ddp::ReduceOp;
using ddp::to_string;

}  // namespace ddp::shm
