// common/launch/network.hpp - this host's addresses, and the address for other hosts.
#pragma once

#include <chrono>
#include <string>

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

/// Numeric address of this host's network interface `name`, if possible of the same family as
/// `like`. Link-local IPv6 does not count: other hosts would need to know the link.
/// @throws UsageError listing the interfaces that exist
std::string address_of_interface(const std::string& name, const std::string& like = "");

/// Numeric address from which this host talks to `host`. Sends nothing.
/// @throws TransientError if it cannot be resolved
/// @throws UsageError if no route leads there
std::string address_towards(const std::string& host, int port);

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
