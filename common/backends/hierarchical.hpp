// common/backends/hierarchical.hpp - several hosts: shared memory inside each, Gloo between one
// rank of each.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/backends/backend.hpp"
#include "common/backends/shm/communicator.hpp"
#include "common/backends/shm/shm_communicator.hpp"
#include "common/backends/shm/shm_host.hpp"

namespace ddp {

/// Which rank is on which host.
struct Topology {
  std::vector<std::vector<int>> hosts;  ///< ranks, ascending; the first of each leads its host
  int host = 0;  ///< of this rank: index in `hosts`
  int local_rank = 0;  ///< index in hosts[host]

  int local_world_size() const { return static_cast<int>(hosts[static_cast<size_t>(host)].size()); }
  int leader() const { return hosts[static_cast<size_t>(host)].front(); }
};

/// Ranks are on one host if they could share memory. @param identities by rank
Topology group_by_host(const std::vector<shm::HostIdentity>& identities, int rank);

/// Collective: ranks tell each other through the store where they are.
/// @param identity where this rank is; tests pretend
Topology find_topology(const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
                       const shm::HostIdentity& identity = shm::read_host_identity());

/// Whether two levels are worth it: between the hosts every byte then travels once per host.
bool has_two_levels(const Topology& topology);

/// CPU tensors only.
/// @throws shm::SegmentError on all ranks alike if the ranks of a host cannot share memory
/// @throws TransientError naming the ranks that did not come in time
c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
    const Topology& topology, const shm::HostIdentity& identity = shm::read_host_identity());

/// Note [Two levels]: the ranks of a host combine their data in shared memory, the leaders combine
/// the hosts' results over the network, and each leader hands that to its host. The order of all
/// sums follows from the ranks and hosts alone.
class HierarchicalCommunicator : public Communicator {
 public:
  /// @param local the ranks of this host, by local rank
  /// @param leaders the hosts' leaders, by host; only on a leader, and only with several hosts
  HierarchicalCommunicator(int rank, int world_size, Topology topology,
                           std::unique_ptr<shm::Communicator> local,
                           c10::intrusive_ptr<c10d::Backend> leaders);

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_size_; }
  uint64_t sequence() const noexcept override { return sequence_; }

  // Those with a size for each rank, too.
  using ddp::Communicator::all_gather;
  using ddp::Communicator::reduce_scatter;

  void barrier() override;
  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op) override;
  void broadcast(void* data, size_t count, DType dtype, int root) override;
  void all_gather(const void* input, void* const* outputs, size_t count, DType dtype) override;
  void gather(const void* input, void* const* outputs, size_t count, DType dtype,
              int root) override;
  void reduce_scatter(const void* const* inputs, void* output, size_t count, DType dtype,
                      ReduceOp op) override;
  std::shared_ptr<void> allocate(size_t bytes) override { return local_->allocate(bytes); }
  void close() override;

 private:
  void reduce_everywhere(void* data, size_t count, DType dtype, ReduceOp op);
  void reduce_between_hosts(void* data, size_t count, DType dtype, ReduceOp op);
  void compare_between_hosts(void* data, size_t count, DType dtype, ReduceOp op);
  /// Runs on leaders only. @param body returns c10d's work, which is waited for
  template <typename Body>
  void between_hosts(const char* operation, const Body& body);
  /// From the leader to its host, which may have waited for the other hosts.
  void hand_down(void* data, size_t count, DType dtype);
  /// As all_gather, into `outputs` if `wanted`.
  void collect(const void* input, void* const* outputs, size_t count, DType dtype, bool wanted);

  int rank_;
  int world_size_;
  Topology topology_;
  std::unique_ptr<shm::Communicator> local_;
  c10::intrusive_ptr<c10d::Backend> leaders_;
  uint64_t sequence_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace ddp
