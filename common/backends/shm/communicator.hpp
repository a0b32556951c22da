// common/backends/shm/communicator.hpp - ranks' collectives on plain memory, whatever carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddp {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt32,
  kInt64,
  kInt8,
  kUint8,
  kBool,  ///< one byte, 0 or 1: a sum is "any", a product "all"
};

enum class ReduceOp : uint8_t { kSum, kAverage, kProduct, kMin, kMax };

enum class Operation : uint8_t {
  kBarrier,
  kAllReduce,
  kReduceScatter,
  kBroadcast,
  kGather,
  kAllGather,
  kConnect,
  kClose,
};

/// A collective call, as messages name it and as ranks over shared memory tell each other: two of
/// them fit into a line of cache, beside a counter.
struct [[gnu::packed, gnu::aligned(4)]] Call {
  uint32_t sequence = 0;  ///< how many collectives there were, with this one; wraps
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;  ///< of kAllReduce and kReduceScatter
  uint8_t root = 0;  ///< of kBroadcast and kGather
  uint64_t count = 0;  ///< elements of each rank
  // Where the rank's elements lie; may differ between ranks.
  uint32_t region = 0;  ///< 0: in memory that is not shared
  uint64_t region_offset = 0;  ///< bytes
};

size_t element_bytes(DType dtype);
bool is_floating(DType dtype);
const char* to_string(DType dtype);
const char* to_string(ReduceOp op);
/// "all_reduce sum of 100 float32"
std::string to_string(const Call& call);
/// A mean of integers or truth values has no exact result, so it is not offered.
bool is_supported(DType dtype, ReduceOp op);

/// How ranks that share no memory yet meet: returns every rank's text, by rank. A collective call.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

/// Every rank must make the same calls in the same order, with the same counts. The calling thread
/// does the work: a call returns when its result is there, and must not be made by two threads at a
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
  /// In place. kAverage only if has_average().
  virtual void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) = 0;
  virtual void broadcast(void* data, size_t count, DType dtype, int root) = 0;
  /// @param outputs one for each rank, of counts[rank] elements; any alignment
  /// @param counts the same on all ranks; may be 0. Only shared memory takes different ones
  virtual void all_gather(const void* input, void* const* outputs, const size_t* counts,
                          DType dtype) = 0;
  /// @param outputs one of `count` elements for each rank on `root`, ignored elsewhere
  virtual void gather(const void* input, void* const* outputs, size_t count, DType dtype,
                      int root) = 0;
  /// @param inputs one for each rank: rank r's output combines the inputs[r], of counts[r] elements
  /// @param counts as above
  virtual void reduce_scatter(const void* const* inputs, void* output, const size_t* counts,
                              DType dtype, ReduceOp op) = 0;

  /// Without it, whoever wants a mean divides a sum.
  virtual bool has_average() const noexcept { return false; }
  /// Collective: memory that all_reduce() works on without a copy. It may outlive this object.
  /// @return nullptr if there is none
  virtual std::shared_ptr<void> allocate(size_t) { return nullptr; }
  /// As NoticesLostRanks. No collective call.
  virtual std::string lost_rank() const { return {}; }
  /// The end of a job in which every rank came this far. Without it, as when an exception unwinds,
  /// this rank just goes.
  virtual void close() {}

 protected:
  /// The one count of all ranks. @throws std::invalid_argument if they differ
  size_t only_count(const size_t* counts) const;

 private:
  int rank_;
  int world_size_;
};

}  // namespace ddp
