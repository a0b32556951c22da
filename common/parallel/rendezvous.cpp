#include "common/parallel/rendezvous.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "common/backends/file_store.hpp"
#include "common/backends/sealed_store.hpp"
#include "common/backends/store_exchange.hpp"
#include "common/base/exit_codes.hpp"
#include "common/base/private_file.hpp"
#include "common/base/process.hpp"
#include "common/base/refuse.hpp"
#include "common/base/seconds_since.hpp"
#include "common/launch/network.hpp"
#include "common/launch/spawn.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = StoreLocation::Kind;

using TcpStore = c10::intrusive_ptr<c10d::TCPStore>;

TransientError no_store(std::chrono::milliseconds timeout, const std::string& host, int port) {
  return TransientError(fmt::format(
      "no store at {} within {} s, expected rank 0 (or the launcher's agent) to serve it",
      endpoint(host, port), in_seconds(timeout)));
}

/// Whatever else has the port may take the connection and never answer, and TCPStore then waits for
/// ever. So a thread of its own does, which is left behind. (Where nobody listens TCPStore tries
/// again, too, for longer than the timeout.)
/// @throws TransientError if nobody has answered by then; c10::Error as TCPStore says it
TcpStore connect_by(std::chrono::milliseconds timeout, const std::string& host,
                    const c10d::TCPStoreOptions& options) {
  std::packaged_task<TcpStore()> connect(
      [host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  std::future<TcpStore> connected = connect.get_future();
  std::thread(std::move(connect)).detach();
  constexpr std::chrono::milliseconds kItsOwnTimeout{500};  // of which it says more
  if (connected.wait_for(timeout + kItsOwnTimeout) != std::future_status::ready) {
    if (!takes_connections(host, options.port)) {
      throw no_store(timeout, host, options.port);
    }
    throw TransientError(
        fmt::format("{} took the connection and did not answer within {} s, expected the store of "
                    "rank 0 (or of the launcher's agent); another program may have the port",
                    endpoint(host, options.port), in_seconds(timeout)));
  }
  return connected.get();
}

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
    return {store_options.isServer ? c10::make_intrusive<c10d::TCPStore>(host, store_options)
                                   : connect_by(timeout, host, store_options),
            host, port};
  } catch (const c10::Error& error) {
    throw no_store(timeout, host, port);
  }
}

/// "host:port key", written by rank 0 and read by the others. The rename makes it appear whole.
void publish_address(const std::string& file, const std::string& address, const std::string& key) {
  const std::string text = fmt::format("{} {}\n", address, key);
  const std::string temporary = fmt::format("{}.{}", file, random_store_key());
  const FileDescriptor written(create_private_file(temporary));
  if (write(written.get(), text.data(), text.size()) != std::ssize(text) ||
      rename(temporary.c_str(), file.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    unlink(temporary.c_str());
    throw TransientError(fmt::format("cannot write {}: {}", file, reason));
  }
}

/// @return false as long as the file is not there
/// @throws UsageError if it is somebody else's
bool read_address(const std::string& file, std::string& address, std::string& key) {
  const FileDescriptor opened(open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!opened.is_open() || fstat(opened.get(), &status) != 0) {
    return false;
  }
  if (status.st_uid != geteuid()) {
    refuse("{}: got a file of user {}, expected user {}, whose rank 0 writes it", file,
           status.st_uid, geteuid());
  }
  std::array<char, 512> text{};
  const ssize_t size = read(opened.get(), text.data(), text.size());
  std::istringstream words(
      std::string(text.data(), static_cast<size_t>(std::max(size, ssize_t{0}))));
  return static_cast<bool>(words >> address >> key);
}

/// Calls `arrived` until that returns true.
/// @throws TransientError after `timeout`, saying what rank 0 did not do
void await_rank_0(const std::function<bool()>& arrived, const std::string& deed,
                  std::chrono::milliseconds timeout) {
  for (const auto deadline = Clock::now() + timeout; !arrived();) {
    if (Clock::now() > deadline) {
      throw TransientError(fmt::format("rank 0 did not {} within {} s", deed, in_seconds(timeout)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// A store that is served, whose address is known.
Rendezvous join(const StoreLocation& location, const std::string& host, int port,
                std::chrono::milliseconds timeout) {
  if (location.kind == Kind::kAgentTcp && is_refused(host, port)) {
    // It served before it started any rank, so it has ended, and who waits would be left alone.
    throw TransientError(fmt::format(
        "nobody serves the store at {}, expected the launcher's agent to, which has ended",
        endpoint(host, port)));
  }
  return tcp_store(host, port, std::nullopt, timeout);
}

Rendezvous seal(Rendezvous meeting, const std::string& key) {
  if (!key.empty()) {
    meeting.store = seal_store(meeting.store, key);
  }
  return meeting;
}

/// Ranks of one host meet at loopback, whatever its name leads to: no other machine can come.
std::string host_of_store(const LaunchEnvironment& environment) {
  const std::string& host = environment.store.host;
  return environment.num_nodes > 1 || host == "localhost" || is_loopback_address(host)
             ? host
             : "127.0.0.1";
}

Rendezvous meet_in_tcp_store(const LaunchEnvironment& environment, const std::string& interface,
                             std::chrono::milliseconds timeout) {
  const StoreLocation& location = environment.store;
  require_resolvable(location.host, timeout);
  if (location.kind == Kind::kAgentTcp) {
    return seal(join(location, location.host, location.port, timeout), location.key);
  }
  std::string host = host_of_store(environment);
  if (environment.rank != 0) {
    return seal(join(location, host, location.port, timeout), location.key);
  }
  if (environment.num_nodes > 1) {
    host = address_to_serve(location.host, interface, location.peer);
  }
  const Listener listener = listen_on(host, location.port);
  return seal(tcp_store(host, listener.port, listener.fd, timeout), location.key);
}

/// Rank 0 takes any port, and a key where none is given, and tells both to who may read its file.
Rendezvous meet_by_shared_file(const LaunchEnvironment& environment, const std::string& interface,
                               std::chrono::milliseconds timeout) {
  const StoreLocation& location = environment.store;
  if (environment.rank == 0) {
    const std::string host = environment.num_nodes > 1
                                 ? address_to_publish(location.host, interface)
                                 : std::string("127.0.0.1");
    const std::string key = location.key.empty() ? random_store_key() : location.key;
    const Listener listener = listen_on(host, 0);
    Rendezvous served = seal(tcp_store(host, listener.port, listener.fd, timeout), key);
    publish_address(location.file, endpoint(host, listener.port), key);
    at_train_end([file = location.file] { unlink(file.c_str()); });  // not for a restart to read
    return served;
  }
  std::string address;
  std::string key;
  await_rank_0([&] { return read_address(location.file, address, key); },
               "publish its address in " + location.file, timeout);
  const HostAndPort server = split_endpoint(address);
  return seal(join(location, server.host, server.port, timeout), key);
}

/// @throws TransientError if the file cannot be written
Rendezvous store_in_file(int file, std::chrono::milliseconds timeout, const std::string& name) {
  try {
    return {make_file_store(file, timeout), "", 0};
  } catch (const c10::Error& error) {
    throw TransientError(fmt::format("cannot write {}: {}", name, error.what_without_backtrace()));
  }
}

Rendezvous meet_in_file(const LaunchEnvironment& environment, std::chrono::milliseconds timeout) {
  const std::string& path = environment.store.file;
  if (environment.rank == 0) {
    const auto file = std::make_shared<MeetingFile>(path);
    // Until then it is there for a process that has the number of another one and must be told so.
    at_train_end([file] {});
    return store_in_file(file->get(), timeout, path);
  }
  FileDescriptor file;
  const auto opened = [&] {
    file.reset(open_meeting_file(path));
    return file.is_open();
  };
  await_rank_0(opened, "make " + path, timeout);
  return store_in_file(file.get(), timeout, path);
}

/// The descriptor is not for what this process starts.
Rendezvous meet_in_inherited_file(int file, std::chrono::milliseconds timeout) {
  if (fcntl(file, F_SETFD, FD_CLOEXEC) != 0) {
    refuse("DDP_STORE_FD: got {} ({}), expected the file that spawn opened", file,
           std::strerror(errno));
  }
  return store_in_file(file, timeout, "the store's file");
}

Rendezvous open_store(const LaunchEnvironment& environment, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  switch (environment.store.kind) {
    case Kind::kNone:
      return {c10::make_intrusive<c10d::HashStore>(), "", 0};
    case Kind::kInheritedFile:
      return meet_in_inherited_file(environment.store.fd, timeout);
    case Kind::kMeetingFile:
      return meet_in_file(environment, timeout);
    case Kind::kTcp:
    case Kind::kAgentTcp:
      return meet_in_tcp_store(environment, interface, timeout);
    case Kind::kSharedFile:
      return meet_by_shared_file(environment, interface, timeout);
  }
  return {};
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
    throw TransientError(meeting.host.empty()
                             ? "the store's file cannot be written, expected room on its device"
                             : "the store at " + endpoint(meeting.host, meeting.port) +
                                   " went away during the rendezvous, expected it to stay; another "
                                   "job may have held its port");
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
  try {
    meet(store, "departure", rank, world_size, store.getTimeout());
  } catch (const TransientError&) {
    // Whoever waits for this rank in a collective has more to say, and has then said it.
    constexpr std::chrono::milliseconds kCollectivesTurn{1500};
    std::this_thread::sleep_for(kCollectivesTurn);
    throw;
  }
  // Rank 0 may be the one who serves the store: it goes last, when the others have their answer.
  const std::vector<std::string> keys = keys_of_ranks("gone", world_size);
  if (rank == 0) {
    store.wait({keys.begin() + 1, keys.end()}, store.getTimeout());
  } else {
    store.set(keys[static_cast<size_t>(rank)], "gone");
  }
}

}  // namespace ddp
