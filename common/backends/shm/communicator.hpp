// common/backends/shm/communicator.hpp - the collectives of a job's ranks on plain memory, whatever
// carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "common/backends/shm/collective_types.hpp"

namespace ddp {

/// Every rank must make the same calls in the same order, with the same counts. The calling thread
/// does the work: a call returns when its result is there, and must not be made by two threads at a
/// time. All ranks get the same bits, in every run.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const noexcept = 0;
  virtual int world_size() const noexcept = 0;
  virtual uint64_t sequence() const noexcept = 0;  ///< collectives so far

  virtual void barrier() = 0;
  /// In place. kAverage only if has_average().
  virtual void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) = 0;
  virtual void broadcast(void* data, size_t count, DType dtype, int root) = 0;
  /// @param outputs one of `count` elements for each rank; any alignment
  virtual void all_gather(const void* input, void* const* outputs, size_t count, DType dtype) = 0;
  /// The same with a size for each rank, which only shared memory takes; elsewhere all must be
  /// equal. @param counts by rank, the same
  /// on all ranks; may be 0
  virtual void all_gather(const void* input, void* const* outputs, const size_t* counts,
                          DType dtype) {
    all_gather(input, outputs, only_count(counts), dtype);
  }
  /// @param outputs as above on `root`, ignored elsewhere
  virtual void gather(const void* input, void* const* outputs, size_t count, DType dtype,
                      int root) = 0;
  /// @param inputs one of `count` elements for each rank: rank r's output combines the inputs[r]
  virtual void reduce_scatter(const void* const* inputs, void* output, size_t count, DType dtype,
                              ReduceOp op) = 0;
  /// The same with a size for each rank. @param counts as above
  virtual void reduce_scatter(const void* const* inputs, void* output, const size_t* counts,
                              DType dtype, ReduceOp op) {
    reduce_scatter(inputs, output, only_count(counts), dtype, op);
  }

  /// Without it, whoever wants a mean divides a sum.
  virtual bool has_average() const noexcept { return false; }
  /// Collective: memory that all_reduce() works on without a copy. It may outlive this object.
  /// @return nullptr if there is none
  virtual std::shared_ptr<void> allocate(size_t) { return nullptr; }
  /// The end of a job in which every rank came this far. Without it, as when an exception unwinds,
  /// this rank just goes.
  virtual void close() {}

 private:
  size_t only_count(const size_t* counts) const {
    for (int r = 1; r < world_size(); ++r) {
      if (counts[r] != counts[0]) {
        throw std::invalid_argument("Expected parts of one size, got " + std::to_string(counts[0]) +
                                    " and " + std::to_string(counts[r]) + " elements");
      }
    }
    return counts[0];
  }
};

}  // namespace ddp
