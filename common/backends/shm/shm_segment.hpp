// common/backends/shm/shm_segment.hpp - shared memory of one host's ranks, and which of them live.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/files.hpp"

namespace ddp::shm {

/// Collective: exchanges texts of ranks that share no memory yet. Returns all texts, by rank.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

/// Says in one line why the ranks cannot share memory. The text is the same on every rank.
struct SegmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Mapping with a part for each rank. Rank r's part begins at a page and is zero at first. Rank r
/// allocates it, so that it lies in the memory of its NUMA node. All memory is reserved at the
/// start: a later store cannot run out of memory, which would be a SIGBUS. The memory is rank 0's
/// and has no name, so nothing can be left behind, and /dev/shm may be small. The others open rank
/// 0's descriptor in /proc, which the kernel allows to processes of one user in one pid namespace.
class Segment {
 public:
  /// Collective: calls `exchange` twice on every rank.
  /// @param part_bytes the same on every rank
  /// @throws SegmentError on all ranks, naming the first rank that failed
  static std::shared_ptr<Segment> create(const Exchange& exchange, int rank, int world_size,
                                         size_t part_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* part(int rank) const { return base_ + static_cast<size_t>(rank) * stride_bytes_; }
  std::vector<std::byte*> parts() const;

  /// True while the process of `rank` has its segment: it locks its byte of the file, and the
  /// kernel unlocks it when the process ends. Another process with the same pid is not mistaken for
  /// it. A child that `rank` forked keeps the lock until it ends or executes another program.
  bool is_held_by(int rank) const;

 private:
  Segment(int world_size, size_t part_bytes);

  /// @return text by which the other ranks find the memory, or "!" and the problem
  std::string make_memory();
  /// @return the problem, or an empty text
  std::string open_memory(const std::string& offer);
  std::string map_and_reserve(int rank);

  size_t stride_bytes_;
  size_t total_bytes_;
  int world_size_;
  FileDescriptor file_;
  std::byte* base_ = nullptr;
};

}  // namespace ddp::shm
