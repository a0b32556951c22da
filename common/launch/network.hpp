// common/launch/network.hpp - this host's addresses, and the address for other hosts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddp {

inline constexpr int kMaxPort = 65535;

/// "n1:29500", "[fd00::1]:29500".
std::string endpoint(const std::string& host, int port);

struct HostAndPort {
  std::string host;
  int port;
};
/// Inverse of endpoint(). @throws UsageError if there is no port
HostAndPort split_endpoint(const std::string& text);

/// True for "localhost" and for numeric addresses that lead no further than this host.
bool is_loopback_address(const std::string& address);

/// Waits until `host` has an address: names of pods and of machines in a cloud come late.
/// @throws TransientError if it has none within `timeout`
void require_resolvable(const std::string& host, std::chrono::milliseconds timeout);

/// Numeric addresses of this host's network interface `name`. Link-local IPv6 does not count: other
/// hosts would need to know the link.
/// @throws UsageError listing the interfaces that exist
std::vector<std::string> addresses_of_interface(const std::string& name);

/// Numeric addresses from which this host talks to `host`, one of each family at most, in the
/// order of the resolver. Sends nothing.
/// @throws TransientError if it cannot be resolved
/// @throws UsageError if no route leads there
std::vector<std::string> addresses_towards(const std::string& host, int port);

/// True for an IPv6 address.
bool is_ipv6(const std::string& address);

/// "n1 (10.0.0.1, fd00::1)": the name with the addresses that this host finds for it.
std::string with_addresses(const std::string& host);

/// True if `host` has an address of this host, loopback included.
bool is_this_host(const std::string& host);

/// Numeric address that rank 0 publishes for the other ranks: the address of `interface`, else the
/// address of `host`, this machine's name, if that is not loopback, else the address of any network
/// of this host.
std::string address_to_publish(const std::string& host, const std::string& interface);

/// Answer of host:port to a connection, which is closed at once.
enum class Answer {
  kTaken,  ///< a program listens
  kRefused,  ///< no program listens: the host refuses connections at every address
  kNone,  ///< an address gave no answer
};
/// @throws TransientError if the name cannot be resolved
Answer try_connect(const std::string& host, int port);

}  // namespace ddp
