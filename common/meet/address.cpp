#include "common/meet/address.hpp"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>

#include "common/base/exit_codes.hpp"
#include "common/base/files.hpp"
#include "common/base/parse.hpp"
#include "common/base/patience.hpp"

namespace ddp {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

/// Resolves `host`. @return its addresses, in the order in which to try them
Addresses resolve(const std::string& host, int port, std::chrono::milliseconds timeout = {}) {
  Patience patience(timeout);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  while (const int error =
             getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    if (patience.is_over()) {
      throw TransientError(fmt::format(
          "MASTER_ADDR={} cannot be resolved ({}), expected a host name or address that every rank "
          "can reach",
          host, gai_strerror(error)));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  return {found, freeaddrinfo};
}

/// "10.77.0.11", "fd00::11", "fe80::1%eth0".
std::string to_text(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return text.data();
}

/// Addresses of `host` as the resolver finds them; none if it has none.
std::vector<std::string> addresses_of(const std::string& host) {
  std::vector<std::string> found;
  try {
    const Addresses addresses = resolve(host, 0);
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
      found.push_back(to_text(at->ai_addr, at->ai_addrlen));
    }
  } catch (const TransientError&) {
  }
  return found;
}

struct Interface {
  std::string name;
  std::string address;
};

/// Interfaces that are up, loopback included, without link-local addresses.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw TransientError(
        fmt::format("cannot list the network interfaces: {}", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool is_up = entry->ifa_addr != nullptr && (entry->ifa_flags & IFF_UP) != 0U;
    const int family = is_up ? entry->ifa_addr->sa_family : AF_UNSPEC;
    const auto* const ipv6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
    if (family == AF_INET || (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr))) {
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back({entry->ifa_name, to_text(entry->ifa_addr, length)});
    }
  }
  return found;
}

}  // namespace

std::string endpoint(const std::string& host, int port) {
  return fmt::format("{}:{}", is_ipv6(host) ? "[" + host + "]" : host, port);
}

bool is_loopback_address(const std::string& address) {
  return address == "localhost" || address.starts_with("127.") || address == "::1" ||
         address.starts_with("::ffff:127.");
}

void require_resolvable(const std::string& host, std::chrono::milliseconds timeout) {
  resolve(host, 0, timeout);
}

bool is_ipv6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

std::string addresses_in_brackets(const std::string& host) {
  const std::vector<std::string> addresses = addresses_of(host);
  return addresses.empty() || addresses.front() == host
             ? ""
             : fmt::format(" ({})", fmt::join(addresses, ", "));
}

bool is_this_host(const std::string& host) {
  const std::vector<Interface> own = interfaces();
  return std::ranges::any_of(addresses_of(host), [&own](const std::string& address) {
    return is_loopback_address(address) ||
           std::ranges::find(own, address, &Interface::address) != own.end();
  });
}

std::vector<std::string> addresses_of_interface(const std::string& name) {
  std::vector<std::string> addresses;
  std::string present;
  for (const Interface& interface : interfaces()) {
    present += fmt::format(" {} ({})", interface.name, interface.address);
    if (interface.name == name) {
      addresses.push_back(interface.address);
    }
  }
  if (addresses.empty()) {
    refuse("--interface: got {}, expected one with an address:{}", quote(name), present);
  }
  return addresses;
}

std::vector<std::string> addresses_towards(const std::vector<std::string>& hosts, int port) {
  std::vector<std::string> found;
  int reason = 0;
  for (const std::string& host : hosts) {
    const Addresses addresses = resolve(host, port);
    for (const addrinfo* target = addresses.get(); target != nullptr; target = target->ai_next) {
      // Connecting a datagram socket looks the route up and sends nothing.
      const FileDescriptor probe(socket(target->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_storage own{};
      socklen_t length = sizeof(own);
      auto* const generic = reinterpret_cast<sockaddr*>(&own);
      if (probe.is_open() && connect(probe.get(), target->ai_addr, target->ai_addrlen) == 0 &&
          getsockname(probe.get(), generic, &length) == 0) {
        const std::string address = to_text(generic, length);
        if (std::ranges::find(found, is_ipv6(address), is_ipv6) == found.end()) {
          found.push_back(address);
        }
      } else {
        reason = errno;
      }
    }
  }
  if (!found.empty()) {
    return found;
  }
  refuse("no route leads from this host to {}{} ({}), expected one; --interface names the network",
         hosts.front(), addresses_in_brackets(hosts.front()), std::strerror(reason));
}

std::vector<std::string> addresses_to_publish(const std::string& host,
                                              const std::string& interface) {
  if (!interface.empty()) {
    return addresses_of_interface(interface);
  }
  std::vector<std::string> addresses = addresses_of(host);
  for (const Interface& other : interfaces()) {
    addresses.push_back(other.address);
  }
  // In some distributions the host's own name has a loopback or link-local address.
  std::erase_if(addresses, [](const std::string& address) {
    return is_loopback_address(address) || address.starts_with("fe80:");
  });
  return addresses.empty() ? std::vector<std::string>{"127.0.0.1"} : addresses;
}

int try_connect(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  int answer = ECONNREFUSED;
  for (const addrinfo* target = addresses.get(); target != nullptr; target = target->ai_next) {
    const FileDescriptor probe(socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{1, 0};
    setsockopt(probe.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (connect(probe.get(), target->ai_addr, target->ai_addrlen) == 0) {
      return 0;
    }
    if (errno != ECONNREFUSED) {
      answer = errno == EINPROGRESS ? ETIMEDOUT : errno;  // EINPROGRESS: the patience is over
    }
  }
  return answer;
}

}  // namespace ddp
