// bench/run/peer_servers.hpp - one process of each Python peer that has imported its framework.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>

namespace ddp::bench {

/// A process in Python takes seconds to import a framework. A server has done so once, and forks
/// for each run: see bench/peers/ddp_peers/processes.py. They end with this object.
class PeerServers {
 public:
  /// @param folder for their sockets
  explicit PeerServers(std::string folder) : folder_(std::move(folder)) {}
  ~PeerServers();
  PeerServers(const PeerServers&) = delete;
  PeerServers& operator=(const PeerServers&) = delete;

  /// Returns at once. One that cannot be started is never ready, and the peer imports each time.
  void start(const std::string& peer, const std::string& python, const std::string& program);

  bool has(const std::string& peer) const { return servers_.count(peer) > 0; }

  /// Whether all are ready, or have ended: then there is nothing to wait for.
  bool settled() const;

  /// Ends those that are not ready: what is decided then stays so for all runs.
  void end_others();

  /// What a run of the peer is to find in DDP_PEER_SERVER; empty if its server is not ready.
  std::string socket_of(const std::string& peer) const;

  /// Whether it is one of them, and is not to be ended with a run.
  bool contains(pid_t pid) const;

 private:
  std::string socket_path(const std::string& peer) const {
    return folder_ + "/" + peer + ".server";
  }

  std::string folder_;
  std::map<std::string, pid_t> servers_;  ///< by peer
};

}  // namespace ddp::bench
