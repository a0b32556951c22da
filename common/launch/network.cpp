// common/launch/network.cpp - asks the resolver and the kernel; sends no data.
#include "common/launch/network.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/parse.hpp"
#include "common/base/process.hpp"
#include "common/base/refuse.hpp"

namespace ddp {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// True for "fe80::1%eth0", too: whether that link is there does not change while we wait.
bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), bytes.data()) == 1;
}

/// The addresses of `host`, in the order in which they are to be tried.
Addresses resolve(const std::string& host, int port, std::chrono::milliseconds timeout = {}) {
  constexpr std::chrono::seconds kPause{1};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  while (const int error =
             getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    if (is_address(host) || std::chrono::steady_clock::now() >= deadline) {
      const std::string message = fmt::format(
          "MASTER_ADDR={} cannot be resolved ({}), expected a host name or address that every rank "
          "can reach",
          host, gai_strerror(error));
      if (is_address(host)) {
        throw UsageError(message);
      }
      throw TransientError(message);
    }
    std::this_thread::sleep_until(std::min(deadline, std::chrono::steady_clock::now() + kPause));
  }
  return {found, freeaddrinfo};
}

/// "10.77.0.11", "fd00::11", "fe80::1%eth0".
std::string to_text(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

int family_of(const std::string& address) {
  return address.find(':') == std::string::npos ? AF_INET : AF_INET6;
}

/// One address of one interface.
struct Interface {
  std::string name;
  std::string address;
};

/// Those that are up and have an address that means something to other hosts, loopback included.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw TransientError(
        fmt::format("cannot list the network interfaces: {}", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0U) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    const auto* const ipv6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (family == AF_INET || (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr))) {
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back({entry->ifa_name, to_text(entry->ifa_addr, length)});
    }
  }
  return found;
}

/// "lo (127.0.0.1), eth0 (10.77.0.11)".
std::string list_of(const std::vector<Interface>& all) {
  std::string list;
  for (const Interface& interface : all) {
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", interface.name, interface.address);
  }
  return list.empty() ? "none" : list;
}

/// 0 if somebody took the connection, which is given up at once.
int error_of_connecting(const addrinfo& target) {
  const FileDescriptor probe(socket(target.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{1, 0};  // of connect(), too
  setsockopt(probe.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  return connect(probe.get(), target.ai_addr, target.ai_addrlen) == 0 ? 0 : errno;
}

}  // namespace

std::string endpoint(const std::string& host, int port) {
  return fmt::format("{}:{}", family_of(host) == AF_INET6 ? "[" + host + "]" : host, port);
}

HostAndPort split_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    throw UsageError("address of rank 0: got " + quote(text) + ", expected host:port");
  }
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  return {host, parse_integer<int>("port of rank 0", text.substr(colon + 1), 1, kMaxPort)};
}

bool is_loopback_address(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

void require_resolvable(const std::string& host, std::chrono::milliseconds timeout) {
  resolve(host, 0, timeout);
}

std::string address_of_interface(const std::string& name, const std::string& like,
                                 const std::string& source) {
  const int wanted = family_of(like);
  std::string address;
  const std::vector<Interface> present = interfaces();
  for (const Interface& interface : present) {
    if (interface.name == name && (address.empty() || (family_of(address) != wanted &&
                                                       family_of(interface.address) == wanted))) {
      address = interface.address;
    }
  }
  if (address.empty()) {
    const bool exists = if_nametoindex(name.c_str()) != 0;
    refuse("{}: {} {} of this host, expected one of: {}", source, quote(name),
           exists ? "has no address or is down" : "is no network interface", list_of(present));
  }
  return address;
}

void require_interface_of_nccl(const std::string& wanted) {
  if (wanted.empty() || wanted.starts_with('^')) {
    return;
  }
  const bool whole_names = wanted.starts_with('=');
  // Of all that there are: NCCL may use some whose addresses mean nothing to others.
  const std::unique_ptr<struct if_nameindex, void (*)(struct if_nameindex*)> present(
      if_nameindex(), if_freenameindex);
  std::istringstream names(wanted.substr(whole_names ? 1 : 0));
  for (std::string name; std::getline(names, name, ',');) {
    name = name.substr(0, name.find(':'));  // a port may follow
    for (const struct if_nameindex* entry = present.get(); entry && entry->if_name; ++entry) {
      const std::string_view there = entry->if_name;
      if (whole_names ? there == name : there.starts_with(name)) {
        return;
      }
    }
  }
  refuse("NCCL_SOCKET_IFNAME: {} names no network interface of this host, expected one of: {}",
         quote(wanted), list_of(interfaces()));
}

std::string address_towards(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  int reason = 0;
  for (const addrinfo* target = addresses.get(); target != nullptr; target = target->ai_next) {
    // A datagram socket: connecting it only looks the route up.
    const FileDescriptor probe(socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    auto* const generic = reinterpret_cast<sockaddr*>(&own);
    if (probe.get() >= 0 && connect(probe.get(), target->ai_addr, target->ai_addrlen) == 0 &&
        getsockname(probe.get(), generic, &length) == 0) {
      return to_text(generic, length);
    }
    reason = errno;
  }
  refuse(
      "no route leads from this host to {} ({}), expected one; --interface names the network to "
      "use",
      endpoint(host, port), std::strerror(reason));
}

bool is_refused(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  for (const addrinfo* target = addresses.get(); target != nullptr; target = target->ai_next) {
    if (error_of_connecting(*target) != ECONNREFUSED) {
      return false;
    }
  }
  return true;
}

bool takes_connections(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  for (const addrinfo* target = addresses.get(); target != nullptr; target = target->ai_next) {
    if (error_of_connecting(*target) == 0) {
      return true;
    }
  }
  return false;
}

Listener listen_on(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  FileDescriptor listener(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (listener.get() >= 0) {  // else errno says why not
    setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (listener.get() < 0 || bind(listener.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw TransientError(fmt::format(
        "cannot listen on {} ({}), expected a free port of this host; another job may hold it",
        endpoint(host, port), std::strerror(errno)));
  }
  const in_port_t network_port = bound.ss_family == AF_INET6
                                     ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                     : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  return {listener.release(), ntohs(network_port)};
}

std::string address_to_serve(const std::string& host, const std::string& interface,
                             const std::string& peer) {
  const Addresses addresses = resolve(host, 0);
  for (const addrinfo* own = addresses.get(); own != nullptr; own = own->ai_next) {
    const std::string address = to_text(own->ai_addr, own->ai_addrlen);
    if (!is_loopback_address(address)) {
      return address;
    }
  }
  if (!interface.empty()) {
    return address_of_interface(interface);
  }
  return peer.empty() ? to_text(addresses->ai_addr, addresses->ai_addrlen)
                      : address_towards(peer, 0);
}

std::string address_to_publish(const std::string& host, const std::string& interface) {
  if (!interface.empty()) {
    return address_of_interface(interface);
  }
  std::string address = address_to_serve(host, interface, "");
  for (const Interface& other : interfaces()) {
    if (is_loopback_address(address) && !is_loopback_address(other.address)) {
      address = other.address;
    }
  }
  return address;
}

}  // namespace ddp
