// common/meet/address.hpp - this host's addresses, and the address for other hosts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddp {

inline constexpr int kMaxPort = 65535;

/// "n1:29500", "[fd00::1]:29500".
std::string endpoint(const std::string& host, int port);

/// True for "localhost" and for numeric addresses that lead no further than this host.
bool is_loopback_address(const std::string& address);

/// Waits until `host` has an address: names of pods and of machines in a cloud come late.
/// @throws TransientError if it has none within `timeout`
void require_resolvable(const std::string& host, std::chrono::milliseconds timeout);

/// Numeric addresses of this host's network interface `name`. Link-local IPv6 does not count: other
/// hosts would need to know the link. @throws UsageError listing the interfaces that exist
std::vector<std::string> addresses_of_interface(const std::string& name);

/// Numeric addresses from which this host talks to a host with these names or addresses, one of
/// each family at most, in their order. Sends nothing.
/// @throws TransientError if one cannot be resolved, UsageError if no route leads to any
std::vector<std::string> addresses_towards(const std::vector<std::string>& hosts, int port);

bool is_ipv6(const std::string& address);

/// " (10.0.0.1, fd00::1)": the addresses that this host finds for a name; empty if there are none.
std::string addresses_in_brackets(const std::string& host);

/// True if `host` has an address of this host, loopback included.
bool is_this_host(const std::string& host);

/// Numeric addresses that rank 0 publishes for the other ranks, in the order in which to try them:
/// of `interface`, else of `host`, this machine's name, and of all networks of this host. Loopback
/// only if there is no other.
std::vector<std::string> addresses_to_publish(const std::string& host,
                                              const std::string& interface);

/// Opens a connection to host:port and closes it.
/// @return 0 if a program listens, else an error of connect(2): ECONNREFUSED if every address of
/// the host refuses @throws TransientError if the name cannot be resolved
int try_connect(const std::string& host, int port);

}  // namespace ddp
