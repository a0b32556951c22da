// common/backends/shm/shm_kernels.hpp - the arithmetic of the collectives over shared memory.
#pragma once

#include <array>
#include <cstddef>

#include "common/backends/shm/communicator.hpp"

namespace ddp::shm {

/// More processes on one host are refused.
inline constexpr int kMaxRanks = 64;
/// Bytes of a line of cache.
inline constexpr size_t kLineBytes = 64;

/// outputs[...][i] = inputs[0][i] + inputs[1][i] + ..., in the order of the inputs; the average is
/// that divided by the number of inputs. The maximum and the minimum are NaN if an input is.
struct Reduction {
  /// The places follow, and are not zero until then: a small reduction takes less time.
  Reduction(DType its_dtype, ReduceOp its_op, size_t its_count, size_t ranks, size_t places)
      : dtype(its_dtype), op(its_op), count(its_count), input_count(ranks), output_count(places) {}

  DType dtype;  ///< not kByte
  ReduceOp op;  ///< kAverage only of floats
  size_t count;  ///< elements
  size_t input_count;
  size_t output_count;
  std::array<const void*, kMaxRanks> inputs;
  std::array<void*, kMaxRanks> outputs;  ///< may be inputs; any alignment
  /// One more output, or nullptr: written past the caches, since another core reads it next.
  /// At a multiple of 64 bytes, and none of the inputs.
  void* streamed_output = nullptr;
};

void reduce(const Reduction& reduction);

/// Copies past the caches. A line of cache that another core has read costs about 100 ns to store
/// to, one after the other; these stores wait for nobody. `to` is at a multiple of 64 bytes.
/// What follows must be ordered by a release store of this thread, as after any other store.
void stream(void* to, const void* from, size_t bytes);

}  // namespace ddp::shm
