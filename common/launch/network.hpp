// common/launch/network.hpp - this host's addresses, and by which of them other hosts reach it.
#pragma once

#include <chrono>
#include <string>

namespace ddp {

inline constexpr int kMaxPort = 65535;

/// "n1:29500", "[fd00::1]:29500".
std::string endpoint(const std::string& host, int port);

/// The other way round. @throws UsageError if there is no port
struct HostAndPort {
  std::string host;
  int port;
};
HostAndPort split_endpoint(const std::string& text);

/// True for addresses, as numbers, that lead no further than this host.
bool is_loopback_address(const std::string& address);

/// Waits until `host` has an address: names of pods and of machines in a cloud come late.
/// @throws TransientError if it has none within `timeout`
/// @throws UsageError, at once, if it is an address on a link that is not there
void require_resolvable(const std::string& host, std::chrono::milliseconds timeout);

/// The address, as a number, of this host's network interface `name`: of the family of `like`, if
/// it has one, else IPv4 before IPv6. Link-local IPv6 does not count: other hosts would need to
/// know the link.
/// @param source who asked for `name`, for the error
/// @throws UsageError listing the interfaces that there are
std::string address_of_interface(const std::string& name, const std::string& like = "",
                                 const std::string& source = "--interface");

/// @param wanted as NCCL_SOCKET_IFNAME has it: "ib,eth" begin the names of those that NCCL may use,
/// "=ib0,ib1" are the names, "^docker" begins those that it may not; empty: any
/// @throws UsageError listing the interfaces that there are if NCCL would find none. Its own words
/// would be "internal error"
void require_interface_of_nccl(const std::string& wanted);

/// The address, as a number, from which this host talks to `host`. Sends nothing.
/// @throws TransientError if it cannot be resolved
/// @throws UsageError if no route leads there
std::string address_towards(const std::string& host, int port);

/// Whether nobody listens there: the host says so itself at every address.
/// @throws TransientError if the name cannot be resolved
bool is_refused(const std::string& host, int port);
/// Whether somebody listens there, by a try. @throws likewise
bool takes_connections(const std::string& host, int port);

/// A socket that listens.
struct Listener {
  int fd;
  int port;
};

/// Listens on `host` alone: left to itself, TCPStore listens on every interface of the machine.
/// @param port 0: any that is free
/// @throws TransientError if the port is taken or the address is another host's
Listener listen_on(const std::string& host, int port);

/// The address at which rank 0 of a job on several hosts serves, so that the others reach it under
/// `host`: where that name leads. /etc/hosts of some distributions makes a host's own name a
/// loopback address; then it is that of `interface`, else the way to `peer`, another host of the
/// job, tells. Of the last two any may be empty; without both it stays a loopback address.
/// @throws TransientError if a name cannot be resolved
std::string address_to_serve(const std::string& host, const std::string& interface,
                             const std::string& peer);

/// For a rank 0 that tells the others its address: as above, but any network of this host will do
/// if nothing says which.
std::string address_to_publish(const std::string& host, const std::string& interface);

}  // namespace ddp
