// common/backends/shm/shm_barrier.hpp - ranks wait for one another, but not for failed ranks.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <vector>

#include "common/backends/communicator.hpp"
#include "common/backends/shm/spin_budget.hpp"
#include "common/base/patience.hpp"

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

/// First page of every rank's part of the shared memory. The rank writes all but `sleepers`, which
/// the other ranks write.
struct ControlPage {
  /// A single cache line, so that other ranks fetch counter and call together. It holds two calls,
  /// because a fast rank announces its next call while a slow rank still reads the last.
  struct alignas(64) Progress {
    std::atomic<uint32_t> arrivals;  ///< number of barriers that this rank has reached; wraps
    std::array<Call, 2> calls;
  };
  struct alignas(64) Sleepers {
    std::atomic<uint32_t> count;  ///< ranks that the kernel must wake when this one arrives
    std::atomic<int64_t> woken_ns;  ///< time of the last wake-up, on the host's steady clock
  };
  struct alignas(64) Failure {
    std::atomic<uint32_t> state;  ///< 1: being written, 2: written; used in rank 0's page
    int32_t rank;
    std::array<char, 1000> reason;
  };

  Progress progress;
  // Two lines apart, because processors fetch lines in pairs: waiting must not slow the counter.
  alignas(128) Sleepers sleepers;
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> has_left;
  std::atomic<Stop> stop;
  Failure failure;
};
static_assert(sizeof(ControlPage::Progress) == 64);
static_assert(sizeof(ControlPage) <= 4096);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

/// Barrier of all ranks. A wait ends when all ranks are there, or throws ddp::Error (1) naming the
/// operation and the rank: when the timeout has passed, when a missing rank's process has ended, or
/// when another rank has failed. Every later call on any rank then fails with the reason of the
/// first failure.
class Barrier {
 public:
  /// @param pages by rank, all zero at first; they must outlive this object
  /// @param timeout limit of every wait
  /// @param is_alive returns false once that rank's process has ended
  Barrier(int rank, std::vector<ControlPage*> pages, std::chrono::milliseconds timeout,
          std::function<bool(int rank)> is_alive);
  /// Tells the ranks that still wait for this rank that it has left.
  ~Barrier();
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  /// Begins a collective: numbers this rank's call, meets the other ranks, compares their calls.
  /// @return true if all ranks' elements lie at the same place of the same region
  bool begin(Call call);
  /// Meets the other ranks again, within the collective of begin().
  void meet();

  void stop(Stop stop) { page(rank_).stop = stop; }  ///< see Communicator::stop()

  uint64_t sequence() const noexcept { return sequence_; }  ///< number of collectives so far

 private:
  int world_size() const noexcept { return static_cast<int>(pages_.size()); }
  ControlPage& page(int rank) const { return *pages_[static_cast<size_t>(rank)]; }
  void arrive();
  /// @return true if `peer` has arrived, false if this rank should sleep
  bool spin(int peer);
  void wait_slowly(int peer);
  void sleep_until_arrival(int peer);
  bool has_arrived(int peer) const;
  /// @return "died during", "left during" or how_stopped(); null if `peer` may come
  const char* how_gone(int peer) const;
  void check_peers();
  void throw_if_failed();
  /// Marks the job as failed and throws. @param reason one line
  [[noreturn]] void fail(const std::string& reason);

  int rank_;
  std::vector<ControlPage*> pages_;
  std::chrono::milliseconds timeout_;
  std::function<bool(int)> is_alive_;
  Call call_;
  uint64_t sequence_ = 0;
  uint32_t arrivals_ = 0;
  SpinBudget spin_budget_;
  std::optional<Patience> patience_;  // of the current wait; set once it takes long
};

}  // namespace ddp::shm
