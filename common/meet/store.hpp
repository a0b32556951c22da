// common/meet/store.hpp - the ranks of a job find each other at a store.
#pragma once

#include "common/meet/board.hpp"
#include "common/meet/launchers.hpp"

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
                              const Rendezvous& meeting, Board& board);

/// Waits until all ranks have called it. The rank that serves the store returns when all know it,
/// at most 10 s later.
/// @param what name of the call for messages
/// @throws TransientError naming the missing ranks, or if the store goes away
void depart(Board& board, const std::string& what);

}  // namespace ddp
