// common/backends/shm/shm_kernels.hpp - the arithmetic of the collectives over shared memory.
#pragma once

#include <array>

#include "common/backends/communicator.hpp"

namespace ddp::shm {

inline constexpr int kMaxRanks = 64;  ///< limit for the ranks of one host
inline constexpr size_t kLineBytes = 64;  ///< of a cache line

/// outputs[...][i] = inputs[0][i] + inputs[1][i] + ..., in the order of the inputs; kAverage
/// divides the sum by the number of inputs. The maximum and the minimum are NaN if an input is NaN.
struct Reduction {
  /// Leaves `inputs` and `outputs` uninitialised, because that makes small reductions faster.
  Reduction(DType its_dtype, ReduceOp its_op, size_t its_count, size_t ranks, size_t places)
      : dtype(its_dtype), op(its_op), count(its_count), input_count(ranks), output_count(places) {}

  DType dtype;  ///< not kByte
  ReduceOp op;  ///< kAverage only for floats
  size_t count;  ///< elements
  size_t input_count;
  size_t output_count;
  std::array<const void*, kMaxRanks> inputs;
  std::array<void*, kMaxRanks> outputs;  ///< may be inputs; any alignment
  /// Another output, or nullptr: written past the caches, since another core reads it next.
  /// At a multiple of 64 bytes, and not an input.
  void* streamed_output = nullptr;
};

void reduce(const Reduction& reduction);

/// Copies past the caches. An ordinary store to a cache line that another core has read takes about
/// 100 ns, one line after the other; these stores do not wait. `to` is at a multiple of 64 bytes.
/// As after other stores, a release store of this thread makes the data visible.
void stream(void* to, const void* from, size_t bytes);

}  // namespace ddp::shm
