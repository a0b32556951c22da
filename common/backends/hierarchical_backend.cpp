// How the two levels are connected.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "common/backends/hierarchical.hpp"
#include "common/backends/host_backend.hpp"
#include "common/backends/store_exchange.hpp"

namespace ddp {
namespace {

constexpr const char* kName = "hierarchical";

c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store,
                                        const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

}  // namespace

Topology group_by_host(const std::vector<shm::HostIdentity>& identities, int rank) {
  Topology topology;
  for (size_t r = 0; r < identities.size(); ++r) {
    auto host = std::find_if(
        topology.hosts.begin(), topology.hosts.end(), [&](const std::vector<int>& ranks) {
          return shm::first_stranger({identities[static_cast<size_t>(ranks[0])], identities[r]})
              .empty();
        });
    if (host == topology.hosts.end()) {
      host = topology.hosts.insert(host, std::vector<int>{});
    }
    if (static_cast<int>(r) == rank) {
      topology.host = static_cast<int>(host - topology.hosts.begin());
      topology.local_rank = static_cast<int>(host->size());
    }
    host->push_back(static_cast<int>(r));
  }
  return topology;
}

Topology find_topology(const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
                       const shm::HostIdentity& identity) {
  std::vector<shm::HostIdentity> identities;
  for (const std::string& text :
       exchange_through(part_of(store, "topology"), kName, options.rank, options.world_size,
                        options.timeout)(shm::to_text(identity))) {
    identities.push_back(shm::host_identity_from(text));
  }
  return group_by_host(identities, options.rank);
}

bool has_two_levels(const Topology& topology) {
  return topology.hosts.size() > 1 &&
         std::all_of(topology.hosts.begin(), topology.hosts.end(),
                     [](const std::vector<int>& ranks) { return ranks.size() > 1; });
}

c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
    const Topology& topology, const shm::HostIdentity& identity) {
  const int local_ranks = topology.local_world_size();
  const std::string leader = std::to_string(topology.leader());
  std::unique_ptr<shm::Communicator> local;
  std::string problem;
  try {
    local = shm::Communicator::connect(
        {.rank = topology.local_rank,
         .world_size = local_ranks,
         .timeout = options.timeout,
         .identity = identity,
         .names = topology.hosts[static_cast<size_t>(topology.host)]},
        exchange_through(part_of(store, "host/" + leader), kName, topology.local_rank, local_ranks,
                         options.timeout));
  } catch (const shm::SegmentError& error) {
    problem = "on host " + identity.host_name + " " + error.what();
  }
  for (const std::string& outcome :
       exchange_through(part_of(store, "outcome"), kName, options.rank, options.world_size,
                        options.timeout)(problem)) {
    if (!outcome.empty()) {
      let_others_read(*store, kName, options.rank, options.world_size, options.timeout);
      throw shm::SegmentError(outcome);
    }
  }
  c10::intrusive_ptr<c10d::Backend> leaders;
  if (topology.hosts.size() > 1 && topology.local_rank == 0) {
    BackendOptions between = options;
    between.rank = topology.host;
    between.world_size = static_cast<int>(topology.hosts.size());
    leaders = make_gloo_backend(part_of(store, "leaders"), between);
  }
  return c10::make_intrusive<HostBackend>(
      kName, std::make_unique<HierarchicalCommunicator>(options.rank, options.world_size, topology,
                                                        std::move(local), std::move(leaders)));
}

}  // namespace ddp
