// common/backends/shm/shm_collectives.hpp - collectives between ranks of one host.
#pragma once

#include "common/backends/shm/shm_barrier.hpp"
#include "common/backends/shm/shm_segment.hpp"

namespace ddp::shm {

struct SeveralHosts : SegmentError {
  using SegmentError::SegmentError;
};

/// Note [How data moves]
/// Each rank's part of the shared memory is a control page, two slots and a mailbox.
/// - Up to kSlotBytes: each rank writes its slot, meets the other ranks once, and combines all
///   slots itself. Two slots take turns, so that no rank waits for slow readers of the last slot.
/// - Larger, in private memory: pieces go through the mailboxes. Rank r combines stripe r of every
///   mailbox and writes the result into its own mailbox. Each rank collects the stripes.
/// - Larger, in a region (see allocate()): rank r combines its stripe of all ranks' tensors in
///   place and writes the result to each tensor. Nothing is copied.
/// Sums are made in the order of the ranks, so all ranks get the same bits, in every run. The
/// calling thread does the work: with a rank on every core, no core is left for a helper.
class Collectives : public Communicator {
 public:
  static constexpr size_t kSlotBytes = 8192;

  /// Collective. Blocks until all ranks are there.
  /// @param timeout limit of every wait for another rank
  /// @throws SeveralHosts, or SegmentError if there are too many ranks or they cannot share memory;
  /// on all ranks
  static std::unique_ptr<Collectives> connect(int rank, int world_size,
                                              std::chrono::milliseconds timeout,
                                              const Exchange& exchange);

  /// Uses memory that is already shared. @param parts by rank, part_bytes(...) each, all zero
  Collectives(int rank, const std::vector<std::byte*>& parts, std::chrono::milliseconds timeout,
              std::function<bool(int)> is_alive);
  static size_t part_bytes(int world_size);

  // Calls that differ between the ranks are refused: see Barrier.

  void barrier() override;
  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override;
  void broadcast(void* data, size_t bytes, int root) override;
  void all_gather(const void* input, void* const* outputs, size_t bytes) override;

  void stop(Stop stop) override { barrier_.stop(stop); }

  bool has_average() const noexcept override { return true; }
  /// @return nullptr on all ranks if their sizes differ or memory cannot be shared
  std::shared_ptr<void> allocate(size_t bytes) override;
  /// Registers memory that is already shared as a region. @param parts by rank
  void add_region(const std::vector<std::byte*>& parts, size_t bytes,
                  std::weak_ptr<const void> owner);

 private:
  struct Region {
    uint32_t id;
    std::vector<std::byte*> parts;
    size_t bytes;
    std::weak_ptr<const void> owner;  // a region ends with its memory
  };

  const Region* find_region(const void* data, size_t bytes) const;
  /// Slot of the collective that began last, or of the next collective: no rank reads the next slot
  /// any more, since all ranks have begun the collective between.
  std::byte* slot(size_t rank, bool next = false) const;
  std::byte* mailbox(size_t rank) const;

  void reduce_slots(void* data, size_t count, DType dtype, ReduceOp op);
  void reduce_in_place(const Region& region, size_t offset, size_t count, DType dtype, ReduceOp op);
  void reduce_through_mailboxes(std::byte* data, size_t count, DType dtype, ReduceOp op);
  /// Offers the `call.count` bytes of `input` (if not null) to all ranks. outputs[r] (if not null)
  /// receives the bytes of rank r.
  void exchange(const Call& call, const void* input, void* const* outputs);
  std::vector<std::string> exchange_texts(const std::string& mine);

  size_t own_;  // rank and world size, as indices
  size_t ranks_;
  std::vector<std::byte*> parts_;
  Barrier barrier_;
  mutable std::vector<Region> regions_;
  uint32_t next_region_ = 1;
};

}  // namespace ddp::shm
