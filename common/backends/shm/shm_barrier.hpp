// common/backends/shm/shm_barrier.hpp - how ranks wait for one another, and what ends the wait.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/backends/shm/communicator.hpp"
#include "common/backends/shm/spin_budget.hpp"

namespace ddp::shm {

/// The beginning of every rank's part of the shared memory. A rank writes its own; only `sleepers`
/// is written by the others.
struct ControlPage {
  /// One line, so that the others fetch the counter and the call together. There are two calls
  /// because a fast rank announces its next one while a slow rank still reads the last.
  struct alignas(64) Progress {
    std::atomic<uint32_t> arrivals;  ///< how many times this rank came to a barrier; wraps
    std::array<Call, 2> calls;
  };
  struct alignas(64) Sleepers {
    std::atomic<uint32_t> count;  ///< ranks that the kernel must wake when this one arrives
    std::atomic<int64_t> woken_ns;  ///< when it last did, of the host's steady clock
  };
  struct alignas(64) Failure {
    std::atomic<uint32_t> state;  ///< 0, 1: being written, 2: written. Rank 0's page counts
    int32_t rank;
    std::array<char, 1000> reason;
  };

  Progress progress;
  // Processors fetch lines in pairs; nobody's waiting may disturb another's counter.
  alignas(128) Sleepers sleepers;
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> has_left;
  Failure failure;
};
static_assert(sizeof(ControlPage::Progress) == 64);
static_assert(sizeof(ControlPage) <= 4096);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

/// The ranks' meeting point. Every wait ends: with all ranks there, when the timeout has passed,
/// when a missing rank's process has ended, or when another rank has failed. The last three throw
/// ddp::Error (1) with one line that names the operation and the rank, and make every later call on
/// any rank fail with the first failure's reason.
class Barrier {
 public:
  /// @param pages by rank, all zero at first; they must outlive this object
  /// @param timeout of every wait
  /// @param is_alive false once that rank's process cannot come any more
  Barrier(int rank, std::vector<ControlPage*> pages, std::chrono::milliseconds timeout,
          std::function<bool(int rank)> is_alive);
  /// Whoever still waits for this rank learns that it has left.
  ~Barrier();
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  /// Begins a collective: meets the others, and compares.
  /// @param call its sequence is set here
  /// @return true if all ranks' elements lie at the same place of the same region
  bool begin(Call call);
  /// Meets the others again, within the collective that begin() began.
  void meet();

  uint64_t sequence() const noexcept { return sequence_; }  ///< collectives so far

 private:
  using Clock = std::chrono::steady_clock;

  int world_size() const noexcept { return static_cast<int>(pages_.size()); }
  ControlPage& page(int rank) const { return *pages_[static_cast<size_t>(rank)]; }
  void arrive();
  void wait_for_all();
  /// @return true if it came, false if this rank should sleep
  bool spin(int peer);
  void wait_slowly(int peer);
  void sleep_until_arrival(int peer, std::chrono::microseconds limit);
  bool has_arrived(int peer) const;
  /// @return "died" or "left"; null if it is there
  const char* how_gone(int peer) const;
  void check_peers();
  void throw_if_failed();
  /// Marks the job as failed and throws. @param reason one line
  [[noreturn]] void fail(const std::string& reason);
  [[noreturn]] void fail_mismatch(int peer);
  std::string name_and_pid(int peer) const;

  int rank_;
  std::vector<ControlPage*> pages_;
  std::chrono::milliseconds timeout_;
  std::function<bool(int)> is_alive_;
  Call call_;
  uint64_t sequence_ = 0;
  uint32_t arrivals_ = 0;
  SpinBudget spin_budget_;
  std::optional<Clock::time_point> deadline_;  // of the meeting, once a wait takes long
};

}  // namespace ddp::shm
