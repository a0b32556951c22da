// common/backends/shm/shm_kernels.hpp - the arithmetic of the collectives over shared memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/backends/shm/communicator.hpp"

namespace ddp::shm {

/// More processes on one host are refused.
inline constexpr int kMaxRanks = 64;

/// outputs[...][i] = inputs[0][i] op inputs[1][i] op ..., in the order of the inputs.
///
/// Half precision is accumulated in float32 and rounded once, to nearest even. Minimum and maximum
/// of NaN and anything is NaN, as in LibTorch. Integers wrap.
struct Reduction {
  DType dtype;
  ReduceOp op;
  size_t count;  ///< elements
  std::span<const void* const> inputs;
  std::span<void* const> outputs;  ///< may be inputs; any alignment
  /// One more output, or nullptr: written past the caches, since another core reads it next.
  /// At a multiple of 64 bytes, and none of the inputs.
  void* streamed_output = nullptr;
};

/// One implementation of the kernels. All of them give the same bits.
struct Kernels {
  const char* name;
  void (*reduce)(const Reduction& reduction);
  /// Copies past the caches. A line of cache that another core has read costs about 100 ns to store
  /// to, one after the other; these stores wait for nobody. `to` is at a multiple of 64 bytes.
  /// What follows must be ordered by a release store of this thread, as after any other store.
  void (*stream)(void* to, const void* from, size_t bytes);
};

/// The fastest that this machine can run.
const Kernels& kernels();
/// All that this machine can run, for tests: "portable" first.
std::vector<const Kernels*> all_kernels();

}  // namespace ddp::shm
