// common/backends/shm/shm_segment.hpp - memory that one host's ranks share, and who still lives.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/backends/shm/communicator.hpp"

namespace ddp::shm {

/// Why the ranks cannot share memory: the same text on every rank, one line.
class SegmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How the others come by the memory that rank 0 makes.
enum class Sharing {
  /// It has no name. They open rank 0's descriptor in /proc, which the kernel allows to processes
  /// of one user in one pid namespace. Nothing can be left behind, and /dev/shm may be small.
  kDescriptor,
  /// By a name in /dev/shm, until all have opened it. If all ranks are killed in that moment the
  /// name stays; the next segment with a name removes it.
  kName,
};

/// One mapping with a part for each rank. Rank r's part begins at a page, was allocated by rank r
/// (so that it lies in its NUMA node's memory), and is all zero at first. All of it is reserved: a
/// store never meets a full file system, which would be a SIGBUS.
class Segment {
 public:
  /// Collective: `exchange` is called the same number of times on every rank.
  /// @param part_bytes the same on every rank
  /// @param ways tried in this order, each by all ranks together
  /// @throws SegmentError on all ranks, naming the first that failed
  static std::shared_ptr<Segment> create(const Exchange& exchange, int rank, int world_size,
                                         size_t part_bytes,
                                         const std::vector<Sharing>& ways = {Sharing::kDescriptor,
                                                                             Sharing::kName});
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* part(int rank) const { return base_ + static_cast<size_t>(rank) * stride_bytes_; }
  std::vector<std::byte*> parts() const;

  /// Whether rank `rank`'s process still has its segment. Each holds a lock on its byte of the
  /// file, which the kernel lets go when the process ends, however it ends: nothing that another
  /// process with the same pid could be mistaken for. A process that `rank` forked, and that
  /// executed nothing, keeps the lock too.
  bool is_held_by(int rank) const;

 private:
  Segment(int world_size, size_t part_bytes);

  /// @return how the other ranks find it, or "!" and what went wrong
  std::string create_file(Sharing way);
  /// @return what went wrong, or nothing
  std::string attach(const std::string& offer, int rank);
  std::string reserve(int rank) const;

  size_t stride_bytes_;
  size_t total_bytes_;
  int world_size_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::string name_;  // in /dev/shm, while it is there
};

/// Removes segments' names that a killed job left in /dev/shm. @return how many
int remove_stale_names();

}  // namespace ddp::shm
