// bench/micro/lockstep.hpp - what ranks need to keep step, without using what is measured.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/backends/shm/shm_segment.hpp"
#include "common/parallel/process_group.hpp"

namespace ddp::micro {

/// Every rank must make the same calls in the same order. Text goes through the store, and ranks on
/// one host start together by shared memory.
///
/// Note [Start line]: a backend's own barrier lets the ranks go some ten microseconds apart, which
/// is more than a whole small all-reduce, and differently for each backend. A counter that all
/// ranks watch lets them go within one.
class Lockstep {
 public:
  /// One rank: every call returns at once.
  explicit Lockstep(const torch::Device& device) : device_(device) {}
  /// @param group must outlive this object @param timeout for every call
  /// @throws shm::SegmentError if the ranks are on one host and cannot share memory
  Lockstep(const ProcessGroup& group, std::chrono::milliseconds timeout);
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int world_size() const { return group_ == nullptr ? 1 : group_->world_size(); }
  const torch::Device& device() const { return device_; }

  /// Rank 0's text, on every rank.
  std::string from_rank0(const std::string& text);
  /// @return on rank 0 all ranks' texts, in order; elsewhere nothing
  std::vector<std::string> gather(const std::string& text);
  /// @return all ranks' texts, in order
  std::vector<std::string> all_gather(const std::string& text);
  /// Returns when all ranks have called it: on one host within about a microsecond of each other.
  /// @throws TransientError if one does not within the timeout
  void line_up();
  /// Waits until the device is idle; nothing to do on a CPU.
  void synchronize() const;

 private:
  struct StartLine {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> round;
  };
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  std::string next_key();

  torch::Device device_;
  const ProcessGroup* group_ = nullptr;
  std::chrono::milliseconds timeout_{0};
  std::shared_ptr<shm::Segment> segment_;
  StartLine* start_line_ = nullptr;  // in it; none with one rank, and with several hosts
  std::uint64_t messages_ = 0;
};

}  // namespace ddp::micro
