// common/parallel/rendezvous.hpp - the ranks of a job find each other at a store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "common/base/exit_codes.hpp"
#include "common/launch/launch_environment.hpp"

namespace ddp {

/// Store and its address.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  std::vector<std::string> hosts;  ///< its names or addresses; empty if no other process needs them
  int port = 0;
  int server = -1;  ///< rank that serves the store; -1: no rank
};

/// Serves the store that `launch` names or connects to it, and waits there for all ranks.
/// @param interface network of the address that rank 0 publishes; empty: any network
/// @return this job's part of the store
/// @throws TransientError naming the missing ranks, a port that is taken, or a host name that
/// cannot be resolved within `timeout`
/// @throws UsageError if the address of the store does not lead to the rank that serves it
Rendezvous rendezvous(const LaunchEnvironment& launch, const std::string& interface,
                      std::chrono::milliseconds timeout);

/// Collective. Address of this host for its peers: loopback on a single host, else the address of
/// `interface`, else the address from which this host reaches the store, of a family (IPv4 or IPv6)
/// that all ranks have.
/// @throws UsageError if there is no such family
std::string address_for_peers(const LaunchEnvironment& launch, const std::string& interface,
                              const Rendezvous& meeting);

/// Waits for the launcher to end this rank, which ends because another rank may have failed. So
/// this rank's exit code, such as 75, does not hide the other rank's.
void wait_for_launcher();

/// Calls `body`, which talks to the store.
/// @throws TransientError naming `what` if the connection to the store breaks
template <typename Body>
auto at_store(const std::string& what, const Body& body) {
  try {
    return body();
  } catch (const c10::DistNetworkError&) {
    wait_for_launcher();
    throw TransientError("the store went away during " + what +
                         ", expected rank 0 (or the launcher's agent) to serve it");
  }
}

/// Waits until all ranks have called it. The rank that serves the store returns when all know it,
/// at most 10 s later.
/// @param what name of the call for messages
/// @throws TransientError naming the missing ranks, or if the store goes away
void depart(c10d::Store& store, int rank, int world_size, const std::string& what);

}  // namespace ddp
