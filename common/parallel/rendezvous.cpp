#include "common/parallel/rendezvous.hpp"

#include <fmt/format.h>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/launch/network.hpp"
#include "common/launch/spawn.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = StoreLocation::Kind;

/// @param listener of the rank that serves the store; none: it is served at host:port
Rendezvous tcp_store(const std::string& host, int port, std::optional<int> listener,
                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(port);
  store_options.isServer = listener.has_value();
  store_options.waitWorkers = false;
  store_options.timeout = timeout;
  store_options.masterListenFd = listener;
  try {
    return {c10::make_intrusive<c10d::TCPStore>(host, store_options), host, port};
  } catch (const c10::Error& error) {
    throw TransientError(fmt::format(
        "no store at {} within {} s, expected rank 0 (or the launcher's agent) to serve it",
        endpoint(host, port), in_seconds(timeout)));
  }
}

/// "host:port", written by rank 0 and read by the others. The rename makes it appear whole.
void publish_address(const std::string& file, const std::string& address) {
  const std::string temporary = file + ".tmp";
  std::ofstream(temporary) << address << '\n';
  std::filesystem::rename(temporary, file);
}

std::string read_address(const std::string& file, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::string address;
  while (!(std::ifstream(file) >> address)) {
    if (Clock::now() > deadline) {
      throw TransientError(fmt::format("rank 0 did not publish its address in {} within {} s", file,
                                       in_seconds(timeout)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return address;
}

Rendezvous open_store(const LaunchEnvironment& environment, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  const StoreLocation& location = environment.store;
  const bool by_file = location.kind == Kind::kSharedFile;
  if (location.kind == Kind::kNone) {
    return {c10::make_intrusive<c10d::HashStore>(), "", 0};
  }
  if (location.kind == Kind::kAgentTcp || environment.rank != 0) {
    const HostAndPort server = by_file ? split_endpoint(read_address(location.file, timeout))
                                       : HostAndPort{location.host, location.port};
    require_resolvable(server.host);
    if (location.kind == Kind::kAgentTcp && is_refused(server.host, server.port)) {
      // It served before it started any rank, so it has ended, and who waits would be left alone.
      throw TransientError(fmt::format(
          "nobody serves the store at {}, expected the launcher's agent to, which has ended",
          endpoint(server.host, server.port)));
    }
    return tcp_store(server.host, server.port, std::nullopt, timeout);
  }
  if (location.listen_fd >= 0) {
    return tcp_store(location.host, location.port, location.listen_fd, timeout);
  }
  std::string host = by_file ? "127.0.0.1" : location.host;
  if (environment.num_nodes > 1) {
    host = by_file ? address_to_publish(location.host, interface)
                   : address_to_serve(location.host, interface, location.peer);
  }
  const Listener listener = listen_on(host, by_file ? 0 : location.port);
  Rendezvous served = tcp_store(host, listener.port, listener.fd, timeout);
  if (by_file) {
    publish_address(location.file, endpoint(host, listener.port));
  }
  return served;
}

/// Every rank announces itself and waits for all others.
void meet(c10d::Store& store, const std::string& event, int rank, int world_size,
          std::chrono::milliseconds timeout) {
  const std::vector<std::string> keys = keys_of_ranks(event, world_size);
  store.set(keys[static_cast<size_t>(rank)], "here");
  wait_for_ranks(store, keys, event, timeout);
}

}  // namespace

Rendezvous rendezvous(const LaunchEnvironment& environment, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  Rendezvous meeting = open_store(environment, interface, timeout);
  // Whatever fails here, the others are to hear of it from its line and not from the store's end.
  at_train_end([store = meeting.store] {});
  const std::string& prefix = environment.store.prefix;
  meeting.store =
      c10::make_intrusive<c10d::PrefixStore>(prefix.empty() ? "ddp" : prefix, meeting.store);
  meeting.store->setTimeout(timeout);
  try {
    if (meeting.store->add(fmt::format("processes/{}", environment.rank), 1) > 1) {
      throw TransientError(fmt::format(
          "rank {} was here before: another process has its number, or an earlier start met at "
          "the same store; expected each of {} ranks once",
          environment.rank, environment.world_size));
    }
    meet(*meeting.store, "rendezvous", environment.rank, environment.world_size, timeout);
  } catch (const c10::Error&) {
    // Nothing was computed yet. A store that goes away now was another job's, which had the port
    // first and has ended; or a rank of this job has failed.
    wait_for_launcher();
    throw TransientError("the store at " + endpoint(meeting.host, meeting.port) +
                         " went away during the rendezvous, expected it to stay; another job may "
                         "have held its port");
  }
  return meeting;
}

std::string address_for_peers(const LaunchEnvironment& environment, const std::string& interface,
                              const Rendezvous& meeting) {
  const bool several_hosts = environment.num_nodes > 1 && !meeting.host.empty();
  const std::string towards_store =
      several_hosts ? address_towards(meeting.host, meeting.port) : "";
  std::string own =
      interface.empty() ? towards_store : address_of_interface(interface, towards_store);
  if (!several_hosts) {
    return own.empty() ? "127.0.0.1" : own;
  }
  const std::vector<std::string> keys = keys_of_ranks("address", environment.world_size);
  meeting.store->set(keys[static_cast<size_t>(environment.rank)], own);
  // The host that serves the store may know it by a loopback address ("localhost", or its own name
  // in /etc/hosts): then the way to a rank elsewhere tells. If there is none, all are on this host.
  for (size_t rank = 0; rank < keys.size() && is_loopback_address(own); ++rank) {
    const std::string other = meeting.store->get_to_str(keys[rank]);
    if (!is_loopback_address(other)) {
      own = address_towards(other, meeting.port);
    }
  }
  return own;
}

void wait_for_launcher() {
  constexpr std::chrono::seconds kLaunchersTurn{1};
  std::this_thread::sleep_for(kLaunchersTurn);
}

void depart(c10d::Store& store, int rank, int world_size) {
  meet(store, "departure", rank, world_size, store.getTimeout());
  // Rank 0 may be the one who serves the store: it goes last, when the others have their answer.
  const std::vector<std::string> keys = keys_of_ranks("gone", world_size);
  if (rank == 0) {
    store.wait({keys.begin() + 1, keys.end()}, store.getTimeout());
  } else {
    store.set(keys[static_cast<size_t>(rank)], "gone");
  }
}

}  // namespace ddp
