// common/backends/hierarchical.hpp - several hosts: shared memory inside each, Gloo between one
// rank of each.
#pragma once

#include <vector>

#include "common/backends/backend.hpp"
#include "common/backends/shm/shm_host.hpp"

namespace ddp {

/// Which rank is on which host.
struct Topology {
  std::vector<std::vector<int>> hosts;  ///< ranks, ascending; the first of each leads its host
  int host = 0;  ///< of this rank: index in `hosts`
  int local_rank = 0;  ///< index in hosts[host]

  const std::vector<int>& local_ranks() const { return hosts[static_cast<size_t>(host)]; }
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
///
/// Note [Two levels]: the ranks of a host combine their data in shared memory, the leaders combine
/// the hosts' results over the network, and each leader hands that to its host. The order of all
/// sums follows from the ranks and hosts alone.
/// @throws shm::SegmentError on all ranks alike if the ranks of a host cannot share memory
/// @throws TransientError naming the ranks that did not come in time
c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
    const Topology& topology, const shm::HostIdentity& identity = shm::read_host_identity());

}  // namespace ddp
