// common/backends/shm/shm_segment.hpp - memory that one host's ranks share, and who still lives.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/backends/shm/communicator.hpp"

namespace ddp::shm {

/// The ranks cannot share memory: one line that says why, the same text on every rank.
class SegmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One mapping with a part for each rank. Rank r's part begins at a page, was allocated by rank r
/// (so that it lies in its NUMA node's memory), and is all zero at first. All of it is reserved: a
/// store never meets memory that is used up, which would be a SIGBUS.
///
/// The memory is rank 0's and has no name, so nothing can be left behind and /dev/shm may be small.
/// The others open rank 0's descriptor in /proc, which the kernel allows to processes of one user
/// in one pid namespace.
class Segment {
 public:
  /// Collective: `exchange` is called twice on every rank.
  /// @param part_bytes the same on every rank
  /// @throws SegmentError on all ranks, naming the first that failed
  static std::shared_ptr<Segment> create(const Exchange& exchange, int rank, int world_size,
                                         size_t part_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* part(int rank) const { return base_ + static_cast<size_t>(rank) * stride_bytes_; }
  std::vector<std::byte*> parts() const;

  /// True while rank `rank`'s process has its segment. Each holds a lock on its byte of the file,
  /// which the kernel lets go when the process ends, however it ends: nothing that another process
  /// with the same pid could be mistaken for. A process that `rank` forked, and that executed
  /// nothing, keeps the lock too.
  bool is_held_by(int rank) const;

 private:
  Segment(int world_size, size_t part_bytes);

  /// @return how the other ranks find it, or "!" and what went wrong
  std::string make_memory();
  /// @return what went wrong, or nothing
  std::string open_memory(const std::string& offer);
  std::string map_and_reserve(int rank);

  size_t stride_bytes_;
  size_t total_bytes_;
  int world_size_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
};

}  // namespace ddp::shm
