// common/backends/communicator.hpp - collectives on plain memory, without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ddp {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kInt64,  ///< sums wrap
  kByte,  ///< data that is only moved
};

constexpr size_t element_bytes(DType dtype) {
  return dtype == DType::kByte ? 1 : dtype == DType::kFloat32 ? 4 : 8;
}

enum class ReduceOp : uint8_t { kSum, kAverage, kMax, kMin };

using Stop = uint32_t;  ///< number of backwards that failed on a rank, or kEnded
inline constexpr Stop kEnded = UINT32_MAX;  ///< the rank has ended its training

/// "has ended its training, this rank calls", for a rank that is at another stop than this rank.
constexpr const char* how_stopped(Stop stop) {
  return stop == kEnded ? "has ended its training, this rank calls"
                        : "goes on after a backward that failed there, this rank calls";
}

/// Collectives, which every rank must call in the same order, with the same counts. The calling
/// thread does the work, so a call returns when its result is there. Two threads must not call at a
/// time. All ranks get the same bits, in every run.
class Communicator {
 public:
  Communicator(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return world_size_; }

  virtual void barrier() = 0;
  /// In place. @param dtype not kByte @param op kAverage only for floats, and if has_average()
  virtual void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) = 0;
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  /// @param outputs memory of `bytes` for each rank; any alignment
  virtual void all_gather(const void* input, void* const* outputs, size_t bytes) = 0;

  /// @return false if callers must divide a sum to get a mean
  virtual bool has_average() const noexcept { return false; }
  /// Collective. Memory that all_reduce() works on without a copy. It may outlive this object.
  /// @return nullptr if there is no such memory
  virtual std::shared_ptr<void> allocate(size_t) { return nullptr; }
  /// Says that this rank makes no further call. A rank that waits for it, now or later, gives up,
  /// unless it has said the same. MPI's ranks are not told.
  virtual void stop(Stop) {}
  /// Collective. Ends a job without failures. After an exception a rank ends without this call.
  virtual void close() {}

 private:
  int rank_;
  int world_size_;
};

}  // namespace ddp
