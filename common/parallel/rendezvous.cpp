#include "common/parallel/rendezvous.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/seconds_since.hpp"
#include "common/launch/network.hpp"
#include "common/launch/spawn.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = StoreLocation::Kind;
using TcpStore = c10::intrusive_ptr<c10d::TCPStore>;

c10d::TCPStoreOptions tcp_options(int port, bool serves, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = timeout;
  return options;
}

/// Serves the store on all addresses of this host, of both families, as torchrun does.
/// @param port 0: any free port
Rendezvous serve(const std::string& host, int port, std::chrono::milliseconds timeout) {
  try {
    const auto store =
        c10::make_intrusive<c10d::TCPStore>(host, tcp_options(port, /*serves=*/true, timeout));
    return {store, host, store->getPort()};
  } catch (const c10::Error& error) {
    throw TransientError(
        fmt::format("cannot listen on port {} ({}), expected a free port of this host; another job "
                    "may hold it",
                    port, error.what_without_backtrace()));
  }
}

/// Connects in a thread, which is left behind if it hangs: TCPStore waits for ever if another
/// program has the port, takes the connection and never answers.
/// @throws TransientError without an answer within `timeout`
Rendezvous connect(const std::string& host, int port, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kItsOwnTimeout{500};  // TCPStore's error says more
  std::packaged_task<TcpStore()> connect([=] {
    return c10::make_intrusive<c10d::TCPStore>(host, tcp_options(port, /*serves=*/false, timeout));
  });
  std::future<TcpStore> connected = connect.get_future();
  std::thread(std::move(connect)).detach();
  const bool answered = connected.wait_for(timeout + kItsOwnTimeout) == std::future_status::ready;
  try {
    if (answered) {
      return {connected.get(), host, port};
    }
  } catch (const c10::Error&) {
    // No program took the connection.
  }
  if (!answered) {
    skip_destructors_at_exit();  // the thread still runs
  }
  throw TransientError(
      fmt::format("no store at {} within {} s, expected rank 0 (or the launcher's agent) to serve "
                  "it{}",
                  endpoint(host, port), in_seconds(timeout),
                  answered ? "" : "; another program may have the port"));
}

/// Serves or connects to a store with a known address.
Rendezvous meet_at_address(const LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  const StoreLocation& location = launch.store;
  require_resolvable(location.host, timeout);
  if (location.kind == Kind::kTcp && launch.rank == 0) {
    return serve(location.host, location.port, timeout);
  }
  if (location.kind == Kind::kAgentTcp &&
      try_connect(location.host, location.port) == Answer::kRefused) {
    // The agent serves before it starts ranks, so it has ended, and waiting would be useless.
    throw TransientError(fmt::format(
        "nobody serves the store at {}, expected the launcher's agent to, which has ended",
        endpoint(location.host, location.port)));
  }
  return connect(location.host, location.port, timeout);
}

/// Serves the store on any free port, and publishes the address in the job's file. The rename makes
/// the file appear whole.
Rendezvous serve_and_publish(const LaunchEnvironment& launch, const std::string& interface,
                             std::chrono::milliseconds timeout) {
  const std::string& file = launch.store.file;
  const std::string host = launch.num_nodes > 1 ? address_to_publish(launch.store.host, interface)
                                                : std::string("127.0.0.1");
  Rendezvous served = serve(host, 0, timeout);
  const std::string temporary = fmt::format("{}.{}", file, getpid());
  std::ofstream out(temporary);
  out << endpoint(host, served.port) << "\n" << std::flush;
  if (!out || std::rename(temporary.c_str(), file.c_str()) != 0) {
    throw TransientError(fmt::format("cannot write {}: {}", file, std::strerror(errno)));
  }
  at_train_end([file] { unlink(file.c_str()); });  // a restart must not read it
  return served;
}

Rendezvous meet_by_shared_file(const LaunchEnvironment& launch, const std::string& interface,
                               std::chrono::milliseconds timeout) {
  if (launch.rank == 0) {
    return serve_and_publish(launch, interface, timeout);
  }
  const std::string& file = launch.store.file;
  std::string address;
  for (const auto deadline = Clock::now() + timeout; !(std::ifstream(file) >> address);) {
    if (Clock::now() > deadline) {
      throw TransientError(fmt::format("rank 0 did not publish its address in {} within {} s", file,
                                       in_seconds(timeout)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const HostAndPort server = split_endpoint(address);
  return connect(server.host, server.port, timeout);
}

Rendezvous open_store(const LaunchEnvironment& launch, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  switch (launch.store.kind) {
    case Kind::kNone:
      return {c10::make_intrusive<c10d::HashStore>(), "", 0};
    case Kind::kFile:
      return {c10::make_intrusive<c10d::FileStore>(launch.store.file, launch.world_size), "", 0};
    case Kind::kTcp:
    case Kind::kAgentTcp:
      return meet_at_address(launch, timeout);
    case Kind::kSharedFile:
      return meet_by_shared_file(launch, interface, timeout);
  }
  return {};
}

/// Announces this rank and waits for all other ranks.
void meet(c10d::Store& store, const std::string& event, int rank, int world_size) {
  const std::vector<std::string> keys = keys_of_ranks(event, world_size);
  store.set(keys[static_cast<size_t>(rank)], "here");
  wait_for_ranks(store, keys, event, store.getTimeout());
}

/// First store of this process, and the number of meetings there: rank 0 may still serve it, and
/// the keys of earlier meetings are still there. Per thread, because in tests a rank is a thread.
struct Met {
  StoreLocation at;
  Rendezvous first;
  int meetings = 0;
};
thread_local std::optional<Met> met;

bool is_same_place(const StoreLocation& one, const StoreLocation& other) {
  return one.kind == other.kind && one.host == other.host && one.port == other.port &&
         one.file == other.file && one.prefix == other.prefix;
}

}  // namespace

Rendezvous rendezvous(const LaunchEnvironment& launch, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  if (launch.store.kind == Kind::kNone || !met || !is_same_place(met->at, launch.store)) {
    met.reset();
    met = {.at = launch.store, .first = open_store(launch, interface, timeout)};
    // Kept until an error of this rank is printed, before the other ranks notice the store's end.
    at_train_end([store = met->first.store] { met.reset(); });
  }
  Rendezvous meeting = met->first;
  const std::string& prefix = launch.store.prefix;
  meeting.store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("{}/{}", prefix.empty() ? "ddp" : prefix, met->meetings++), meeting.store);
  meeting.store->setTimeout(timeout);
  try {
    if (meeting.store->add(fmt::format("processes/{}", launch.rank), 1) > 1) {
      throw TransientError(fmt::format(
          "rank {} was here before: another process has its number, or an earlier start met at "
          "the same store; expected each of {} ranks once",
          launch.rank, launch.world_size));
    }
    meet(*meeting.store, "rendezvous", launch.rank, launch.world_size);
  } catch (const c10::Error&) {
    // Nothing was computed yet. If the store goes away now, it belonged to another job that had the
    // port first and has ended, or a rank of this job has failed.
    wait_for_launcher();
    throw TransientError(meeting.host.empty()
                             ? "the store's file cannot be written, expected room on its device"
                             : "the store at " + endpoint(meeting.host, meeting.port) +
                                   " went away during the rendezvous, expected it to stay; another "
                                   "job may have held its port");
  }
  return meeting;
}

std::string address_for_peers(const LaunchEnvironment& launch, const std::string& interface,
                              const Rendezvous& meeting) {
  const bool several_hosts = launch.num_nodes > 1 && !meeting.host.empty();
  const std::string towards_store =
      several_hosts ? address_towards(meeting.host, meeting.port) : "";
  std::string own =
      interface.empty() ? towards_store : address_of_interface(interface, towards_store);
  if (!several_hosts) {
    return own.empty() ? "127.0.0.1" : own;
  }
  const std::vector<std::string> keys = keys_of_ranks("address", launch.world_size);
  meeting.store->set(keys[static_cast<size_t>(launch.rank)], own);
  // On the host of the store the address may be loopback ("localhost", or its own name in
  // /etc/hosts). Then take the address towards a rank elsewhere; without such a rank keep loopback.
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
  try {
    meet(store, "departure", rank, world_size);
  } catch (const TransientError&) {
    // Lets a rank that waits for this rank in a collective print its error first, which says more.
    constexpr std::chrono::milliseconds kCollectivesTurn{1500};
    std::this_thread::sleep_for(kCollectivesTurn);
    throw;
  }
  // Rank 0, which may serve the store, goes last.
  const std::vector<std::string> keys = keys_of_ranks("gone", world_size);
  if (rank == 0) {
    store.wait({keys.begin() + 1, keys.end()}, store.getTimeout());
  } else {
    store.set(keys[static_cast<size_t>(rank)], "gone");
  }
}

}  // namespace ddp
