#include "common/parallel/rendezvous.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/backends/shm/communicator.hpp"
#include "common/base/exit_codes.hpp"
#include "common/launch/network.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

c10::intrusive_ptr<c10d::Store> tcp_store(const std::string& host, int port, bool is_server,
                                          std::optional<int> listen_fd,
                                          std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<uint16_t>(port);
  store_options.isServer = is_server;
  store_options.waitWorkers = false;
  store_options.timeout = timeout;
  store_options.masterListenFd = listen_fd;
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, store_options);
  } catch (const c10::Error& error) {
    throw TransientError("no store at " + endpoint(host, port) + " within " + in_seconds(timeout) +
                         " s, expected rank 0 (or the launcher's agent) to serve it");
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
      throw TransientError("rank 0 did not publish its address in " + file + " within " +
                           in_seconds(timeout) + " s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return address;
}

/// A store, and where it is reached; no host if nobody else needs to.
struct OpenStore {
  c10::intrusive_ptr<c10d::Store> store;
  std::string host;
  int port = 0;
};

OpenStore connect_to(const std::string& host, int port, std::chrono::milliseconds timeout) {
  require_resolvable(host);
  return {tcp_store(host, port, /*is_server=*/false, std::nullopt, timeout), host, port};
}

OpenStore serve_at(const std::string& host, const Listener& listener,
                   std::chrono::milliseconds timeout) {
  return {tcp_store(host, listener.port, /*is_server=*/true, listener.fd, timeout), host,
          listener.port};
}

OpenStore open_store(const LaunchEnvironment& environment, const std::string& interface,
                     std::chrono::milliseconds timeout) {
  const StoreLocation& location = environment.store;
  const bool serves = environment.rank == 0;
  const bool several_hosts = environment.num_nodes > 1;
  switch (location.kind) {
    case StoreLocation::Kind::kNone:
      return {c10::make_intrusive<c10d::HashStore>(), "", 0};
    case StoreLocation::Kind::kAgentTcp:
      return connect_to(location.host, location.port, timeout);
    case StoreLocation::Kind::kTcp: {
      if (!serves) {
        return connect_to(location.host, location.port, timeout);
      }
      if (location.listen_fd >= 0) {
        return serve_at(location.host, {location.listen_fd, location.port}, timeout);
      }
      const std::string host =
          several_hosts ? address_to_serve(location.host, interface, location.peer) : location.host;
      return serve_at(host, listen_on(host, location.port), timeout);
    }
    case StoreLocation::Kind::kSharedFile: {
      if (serves) {
        const std::string host =
            several_hosts ? address_to_publish(location.host, interface) : "127.0.0.1";
        OpenStore open = serve_at(host, listen_on(host, 0), timeout);
        publish_address(location.file, endpoint(open.host, open.port));
        return open;
      }
      const auto [host, port] = split_endpoint(read_address(location.file, timeout));
      return connect_to(host, port, timeout);
    }
  }
  TORCH_INTERNAL_ASSERT(false, "unknown store kind");
}

/// Every rank announces itself and waits for all others.
void wait_for_all(c10d::Store& store, const std::string& event, int rank, int world_size,
                  std::chrono::milliseconds timeout) {
  const auto key = [&](int r) { return event + "/" + std::to_string(r); };
  set_text(store, key(rank), "here");
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) {
    keys.push_back(key(r));
  }
  try {
    store.wait(keys, timeout);
  } catch (const c10::Error&) {
    std::string missing;
    for (int r = 0; r < world_size; ++r) {
      if (!store.check({key(r)})) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(r);
      }
    }
    throw TransientError("within " + in_seconds(timeout) + " s " + event + " lacks rank " +
                         missing + " of world size " + std::to_string(world_size) +
                         ", expected all of them");
  }
}

}  // namespace

void set_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string get_text(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

Rendezvous rendezvous(const LaunchEnvironment& environment, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  OpenStore open = open_store(environment, interface, timeout);
  const std::string& prefix = environment.store.prefix;
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix.empty() ? "ddp" : prefix, open.store);
  store->setTimeout(timeout);
  try {
    wait_for_all(*store, "rendezvous", environment.rank, environment.world_size, timeout);
  } catch (const c10::Error&) {
    // Nothing was computed yet. A store that goes away now was another job's, which had the port
    // first and has ended; or a rank of this job has failed, and the launcher is about to end this
    // one too, which it is given the time for: 75 is not to hide that rank's exit code.
    constexpr std::chrono::seconds kLaunchersTurn{1};
    std::this_thread::sleep_for(kLaunchersTurn);
    throw TransientError("the store at " + endpoint(open.host, open.port) +
                         " went away during the rendezvous, expected it to stay; another job may "
                         "have held its port");
  }
  return {std::move(store), std::move(open.host), open.port};
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
  const auto key = [](int rank) { return "address/" + std::to_string(rank); };
  set_text(*meeting.store, key(environment.rank), own);
  // The host that serves the store may know it by a loopback address ("localhost", or its own name
  // in /etc/hosts): then the way to a rank elsewhere tells. If there is none, all are on this host.
  for (int rank = 0; rank < environment.world_size && is_loopback_address(own); ++rank) {
    const std::string other = get_text(*meeting.store, key(rank));
    if (!is_loopback_address(other)) {
      own = address_towards(other, meeting.port);
    }
  }
  return own;
}

void depart(c10d::Store& store, int rank, int world_size) {
  wait_for_all(store, "departure", rank, world_size, store.getTimeout());
  // Rank 0 may be the one who serves the store: it goes last, when the others have their answer.
  if (rank != 0) {
    set_text(store, "gone/" + std::to_string(rank), "gone");
    return;
  }
  std::vector<std::string> others;
  for (int r = 1; r < world_size; ++r) {
    others.push_back("gone/" + std::to_string(r));
  }
  store.wait(others, store.getTimeout());
}

}  // namespace ddp
