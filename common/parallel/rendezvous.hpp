// common/parallel/rendezvous.hpp - the ranks of a job find each other at a store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "common/launch/launch_environment.hpp"

namespace ddp {

/// A store, and where it is reached.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  std::string host;  ///< empty if nobody else needs to reach it
  int port = 0;
};

/// Serves the store that `launch` names or connects to it, and waits there for all ranks.
/// @param interface for a rank 0 that publishes its address; empty: any network of its host
/// @return this job's part of the store
/// @throws TransientError naming the missing ranks, the port that is taken, or a host name that
/// cannot be resolved within `timeout`
Rendezvous rendezvous(const LaunchEnvironment& launch, const std::string& interface,
                      std::chrono::milliseconds timeout);

/// This host's address for its peers: on one host loopback, which reaches no other machine, on
/// several that of the wanted interface, or that by which it reaches the store. Collective.
std::string address_for_peers(const LaunchEnvironment& launch, const std::string& interface,
                              const Rendezvous& meeting);

/// For a rank that ends because another one failed, or may have: the launcher is about to end this
/// one too, and is given the time for that, so that its exit code (75, say) does not hide the
/// other's.
void wait_for_launcher();

/// Waits until every rank is here. Rank 0, who may serve the store, stays until all have seen that.
void depart(c10d::Store& store, int rank, int world_size);

}  // namespace ddp
