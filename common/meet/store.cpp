#include "common/meet/store.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/base/patience.hpp"
#include "common/meet/address.hpp"

namespace ddp {
namespace {

using Kind = StoreLocation::Kind;

constexpr const char* kLoopback = "127.0.0.1";

c10d::TCPStoreOptions tcp_options(int port, bool serves, std::chrono::milliseconds timeout) {
  return {.port = static_cast<uint16_t>(port),
          .isServer = serves,
          .waitWorkers = false,
          .timeout = timeout};
}

/// @return a socket for TCPStore, which by itself binds to all addresses of both families
int bind_to_loopback(int port) {
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const FileDescriptor bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(bound.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  TORCH_CHECK(bind(bound.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
              std::strerror(errno));
  return fcntl(bound.get(), F_DUPFD_CLOEXEC, 0);  // TCPStore closes it
}

/// Serves the store: for a single node at loopback alone, which no other host can reach, else on
/// all addresses of this host, as torchrun does. Port 0 is any free port.
Rendezvous serve(const LaunchEnvironment& launch, int port, std::chrono::milliseconds timeout) {
  try {
    c10d::TCPStoreOptions options = tcp_options(port, /*serves=*/true, timeout);
    if (launch.num_nodes == 1) {
      options.masterListenFd = bind_to_loopback(port);
    }
    const auto store = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
    return {.store = store, .hosts = {kLoopback}, .port = store->getPort()};
  } catch (const c10::Error& error) {
    throw TransientError(
        fmt::format("cannot listen on port {} ({}), expected a free port of this host; another job "
                    "may hold it",
                    port, error.what_without_backtrace()));
  }
}

/// @return why no store answers at host:port, and what may be wrong with the address
/// @throws UsageError if no route leads there
std::string reason_without_store(const LaunchEnvironment& launch, const std::string& host,
                                 int port) {
  const int error = try_connect(host, port);
  if (error == 0) {
    return "a program listens, but answers nothing: another program may have the port";
  }
  if (launch.store.kind == Kind::kTcp) {
    addresses_towards({host}, port);  // refuses
  }
  const bool is_here = launch.local_rank != launch.rank && is_this_host(host);
  return std::string(std::strerror(error)) +
         (is_here ? "; this is an address of this host, but rank 0 may be on another" : "");
}

/// Connects in a thread, because TCPStore waits for ever if another program has the port, takes the
/// connection and never answers.
/// @throws TransientError without an answer within `timeout`, or once the agent has ended
Rendezvous connect(const LaunchEnvironment& launch, const std::string& host, int port,
                   std::chrono::milliseconds timeout) {
  // It serves before it starts ranks. One that is killed takes connections for some milliseconds.
  const auto agent_has_ended = [&] {
    return launch.store.kind == Kind::kAgentTcp && try_connect(host, port) == ECONNREFUSED;
  };
  try {
    const auto connect = [=] {
      return c10::make_intrusive<c10d::TCPStore>(host, tcp_options(port, false, kNoLimit));
    };
    if (const auto connected = ask_in_time(connect, timeout, agent_has_ended)) {
      return {.store = *connected, .hosts = {host}, .port = port};
    }
  } catch (const c10::Error&) {
    // Its error does not say why.
  }
  if (agent_has_ended()) {
    throw TransientError(fmt::format(
        "nobody serves the store at {}, expected the launcher's agent to, which has ended",
        endpoint(host, port)));
  }
  throw TransientError(fmt::format(
      "no store at {} within {} s, expected rank 0 (or the launcher's agent) to serve it ({})",
      endpoint(host, port) + addresses_in_brackets(host), in_seconds(timeout),
      reason_without_store(launch, host, port)));
}

/// Checks that the address for the other ranks leads to this one, at which the store is served. It
/// need not be an address of this host: a service of Kubernetes forwards connections.
/// @throws UsageError if nobody answers there within a minute, in which names of pods change, or
/// half of `timeout`, before the others give up
void require_address_of_this_host(const LaunchEnvironment& launch,
                                  std::chrono::milliseconds timeout) {
  const std::string& host = launch.store.host;
  Patience patience(std::min(timeout / 2, std::chrono::milliseconds(60'000)));
  while (!is_this_host(host) && try_connect(host, launch.store.port) != 0) {
    if (patience.is_over()) {
      const auto found = std::ranges::find(launch.evidence, "store.host", &Evidence::what);
      refuse(
          "{}: got {}{}, which does not lead to this host, where the store is; expected the name "
          "or address at which the others reach it",
          found == launch.evidence.end() ? "MASTER_ADDR" : found->source, host,
          addresses_in_brackets(host));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Rendezvous meet_at_address(const LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  const StoreLocation& location = launch.store;
  require_resolvable(location.host, timeout);
  if (location.server == launch.rank) {
    Rendezvous served = serve(launch, location.port, timeout);
    require_address_of_this_host(launch, timeout);
    served.hosts = {location.host};
    return served;
  }
  const bool is_single_node = location.kind == Kind::kTcp && launch.num_nodes == 1;
  return connect(launch, is_single_node ? kLoopback : location.host, location.port, timeout);
}

/// Text of a file of this user, because others may write in the job's folder; else "".
std::string own_text(const std::string& path) {
  // No link, and no pipe that waits.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  const bool is_own =
      fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
  return is_own ? read_text(fmt::format("/proc/self/fd/{}", file.get())) : "";
}

/// The file has the port, which is any free one, and the addresses of rank 0.
Rendezvous meet_by_shared_file(const LaunchEnvironment& launch, const std::string& interface,
                               std::chrono::milliseconds timeout) {
  const std::string& path = launch.store.file;
  if (launch.store.server == launch.rank) {
    Rendezvous served = serve(launch, 0, timeout);
    replace_file("file of addresses", path,
                 fmt::format("{} {}\n", served.port,
                             fmt::join(addresses_to_publish(launch.store.host, interface), " ")));
    at_train_end([path] { unlink(path.c_str()); });  // a restart must not read it
    return served;
  }
  int port = 0;
  // This host may lack a family of addresses, or a network. Peers too are met only at what answers.
  // Nothing answers at what an earlier start has left.
  std::vector<std::string> answering;
  for (Patience patience(timeout); answering.empty();) {
    std::istringstream file(own_text(path));
    file >> port;
    for (std::string host; file >> host;) {
      if (try_connect(host, port) == 0) {
        answering.push_back(host);
      }
    }
    if (answering.empty() && patience.is_over()) {
      throw TransientError(fmt::format(
          "within {} s rank 0 did not publish an address that answers, expected it in {}, a file "
          "of this user",
          in_seconds(timeout), path));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Rendezvous meeting = connect(launch, answering.front(), port, timeout);
  meeting.hosts = answering;
  return meeting;
}

Rendezvous open_store(const LaunchEnvironment& launch, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  switch (launch.store.kind) {
    case Kind::kNone:
      return {.store = c10::make_intrusive<c10d::HashStore>(), .hosts = {}};
    case Kind::kFile: {
      const auto store = c10::make_intrusive<c10d::FileStore>(launch.store.file, launch.world_size);
      // For ever: after half a record, as on a full disk, ~FileStore() would wait for the rest.
      [[maybe_unused]] static const auto* kept = thread_is_a_rank ? nullptr : new auto(store);
      return {.store = store, .hosts = {}};
    }
    case Kind::kTcp:
    case Kind::kAgentTcp:
      return meet_at_address(launch, timeout);
    case Kind::kSharedFile:
      return meet_by_shared_file(launch, interface, timeout);
  }
  return {};
}

/// Nothing was computed yet. If the store goes away now, it belonged to another job that had the
/// port first and has ended, or a rank of this job has failed.
TransientError taken_away(const Rendezvous& meeting) {
  return TransientError(meeting.hosts.empty()
                            ? "the store's file cannot be written, expected room on its device"
                            : "the store at " + endpoint(meeting.hosts.front(), meeting.port) +
                                  " went away during the rendezvous, expected it to stay; another "
                                  "job may have held its port");
}

/// First store of this rank, and the number of meetings there: its server may still run, and the
/// keys of earlier meetings are still there.
struct FirstStore {
  StoreLocation at;
  Rendezvous opened;
  int meetings = 0;
};

}  // namespace

Rendezvous rendezvous(const LaunchEnvironment& launch, const std::string& interface,
                      std::chrono::milliseconds timeout) {
  std::optional<FirstStore>& first = of_this_rank<std::optional<FirstStore>>();
  if (launch.store.kind == Kind::kNone || !first || first->at != launch.store) {
    first.reset();
    first = {.at = launch.store, .opened = open_store(launch, interface, timeout)};
    // Kept until an error of this rank is printed, before the other ranks notice the store's end.
    at_train_end([&first, store = first->opened.store] { first.reset(); });
  }
  Rendezvous meeting = first->opened;
  const std::string& prefix = launch.store.prefix;
  meeting.store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("{}/{}", prefix.empty() ? "ddp" : prefix, first->meetings++), meeting.store);
  meeting.store->setTimeout(timeout);
  try {
    if (meeting.store->add(fmt::format("processes/{}", launch.rank), 1) > 1) {
      throw TransientError(fmt::format(
          "rank {} was here before: another process has its number, or an earlier start met at "
          "the same store; expected each of {} ranks once",
          launch.rank, launch.world_size));
    }
    if (launch.store.server == launch.rank) {
      meeting.store->set("server", std::to_string(launch.rank));
    }
    Board(meeting.store, launch.rank, launch.world_size, timeout).gather("rendezvous", "");
    if (meeting.store->check({"server"})) {
      meeting.server = std::stoi(meeting.store->get_to_str("server"));
    }
  } catch (const StoreGone&) {
    throw taken_away(meeting);
  } catch (const c10::Error&) {
    wait_for_launcher();
    throw taken_away(meeting);
  }
  return meeting;
}

std::string address_for_peers(const LaunchEnvironment& launch, const std::string& interface,
                              const Rendezvous& meeting, Board& board) {
  if (launch.num_nodes == 1 || meeting.hosts.empty()) {
    return interface.empty() ? kLoopback : addresses_of_interface(interface).front();
  }
  const std::vector<std::string> own = interface.empty()
                                           ? addresses_towards(meeting.hosts, meeting.port)
                                           : addresses_of_interface(interface);
  std::vector<std::vector<std::string>> of_ranks;
  std::vector<std::string> elsewhere;
  std::string all;
  for (const std::string& text : board.gather("address", fmt::format("{}", fmt::join(own, " ")),
                                              "the exchange of addresses")) {
    const std::vector<std::string>& addresses = of_ranks.emplace_back(split(text, ' '));
    std::ranges::remove_copy_if(addresses, std::back_inserter(elsewhere), is_loopback_address);
    all += fmt::format("{}rank {} has {}", all.empty() ? "" : ", ", of_ranks.size() - 1, text);
  }
  if (elsewhere.empty()) {
    return own.front();
  }
  for (const std::string& wanted : elsewhere) {
    const auto fits = [&](const auto& address) { return is_ipv6(address) == is_ipv6(wanted); };
    // On the host of the store the addresses may be loopback ("localhost", or its own name in
    // /etc/hosts). Such a rank takes its address towards a rank elsewhere.
    if (std::ranges::all_of(of_ranks, [&fits](const auto& addresses) {
          return std::ranges::any_of(addresses, fits) ||
                 std::ranges::all_of(addresses, is_loopback_address);
        })) {
      const auto mine = std::ranges::find_if(own, [&fits](const auto& address) {
        return fits(address) && !is_loopback_address(address);
      });
      return mine == own.end() ? addresses_towards({wanted}, meeting.port).front() : *mine;
    }
  }
  refuse("addresses: {}; expected an IPv4 address of every rank, or an IPv6 one", all);
}

void depart(Board& board, const std::string& what) {
  try {
    board.gather("departure", "", what);
  } catch (const TransientError&) {
    // Lets a rank that waits for this rank in a collective print its error first, which says more.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    throw;
  }
  board.wait_for_readers("departure");
}

}  // namespace ddp
