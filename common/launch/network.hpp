// common/launch/network.hpp - this host's addresses, and by which of them other hosts reach it.
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

/// Numeric address of this host's network interface `name`: of the family of `like`, if it has one,
/// else IPv4 before IPv6. Link-local IPv6 does not count: other hosts would need to know the link.
/// @throws UsageError listing the interfaces that exist
std::string address_of_interface(const std::string& name, const std::string& like = "");

/// Numeric address from which this host talks to `host`. Sends nothing.
/// @throws TransientError if it cannot be resolved
/// @throws UsageError if no route leads there
std::string address_towards(const std::string& host, int port);

/// Numeric address under which others reach a rank 0 that tells them: the address of `interface`,
/// else the address of `host`, this machine's name, if that is no loopback address, else the
/// address of any network of this host.
std::string address_to_publish(const std::string& host, const std::string& interface);

/// How host:port answers a connection, which is given up at once.
enum class Answer {
  kTaken,  ///< somebody listens
  kRefused,  ///< nobody listens: the host says so itself, at every address
  kNone,
};
/// @throws TransientError if the name cannot be resolved
Answer try_connect(const std::string& host, int port);

}  // namespace ddp
