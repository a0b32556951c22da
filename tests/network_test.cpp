// Which of a host's addresses its peers are told. Several hosts are in slurm_test.py.
#include "common/launch/network.hpp"

#include <unistd.h>

#include <string>

#include "common/base/exit_codes.hpp"
#include "tests/catch.hpp"

namespace {

using ddp::test::contains;

/// What it says when it refuses, on one line.
template <typename Refusal = ddp::UsageError, typename Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Refusal& error) {
    return error.what();
  }
  return "(accepted)";
}

}  // namespace

TEST_CASE("an address with its port, and back") {
  CHECK(ddp::endpoint("n1", 29500) == "n1:29500");
  CHECK(ddp::endpoint("10.0.0.1", 1) == "10.0.0.1:1");
  CHECK(ddp::endpoint("fd00::1", 29500) == "[fd00::1]:29500");
  for (const std::string host : {"n1", "10.0.0.1", "fd00::1", "::1", "fe80::1%eth0"}) {
    const auto [back, port] = ddp::split_endpoint(ddp::endpoint(host, 65535));
    CHECK(back == host);
    CHECK(port == 65535);
  }
  for (const std::string text : {"", "n1", "n1:", "n1:x", "n1:0", "n1:65536", "n1: 1", "n1:1 "}) {
    INFO(text);
    CHECK(contains(refusal([&] { ddp::split_endpoint(text); }), "expected"));
  }
}

TEST_CASE("loopback addresses") {
  for (const char* const address : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"}) {
    CHECK(ddp::is_loopback_address(address));
  }
  for (const char* const address : {"10.0.0.1", "128.0.0.1", "fd00::1", "::", "localhost", ""}) {
    CHECK_FALSE(ddp::is_loopback_address(address));
  }
}

TEST_CASE("an interface is asked for by name") {
  CHECK(ddp::address_of_interface("lo") == "127.0.0.1");
  CHECK(ddp::address_of_interface("lo", "10.0.0.1") == "127.0.0.1");
  for (const std::string name : {"nope", "", "lo ", "LO", "127.0.0.1", "l"}) {
    const std::string message = refusal([&] { ddp::address_of_interface(name); });
    INFO(message);
    CHECK(contains(message, "\"" + name + "\" is no network interface"));
    CHECK(contains(message, "expected one of: "));
    CHECK(contains(message, "lo (127.0.0.1)"));
    CHECK_FALSE(contains(message, "\n"));
  }
}

TEST_CASE("a wrong interface is refused under the name of who asked for it") {
  CHECK(contains(refusal([] { ddp::address_of_interface("nope", "", "GLOO_SOCKET_IFNAME"); }),
                 "GLOO_SOCKET_IFNAME: \"nope\" is no network interface of this host"));
  for (const std::string wanted : {"", "lo", "l", "=lo", "nope,lo", "=nope,lo", "^nope", "^lo"}) {
    INFO(wanted);
    CHECK(refusal([&] { ddp::require_interface_of_nccl(wanted); }) == "(accepted)");
  }
  for (const std::string wanted : {"nope", "lol", "=l", "=nope,l", "nope,lol"}) {
    const std::string message = refusal([&] { ddp::require_interface_of_nccl(wanted); });
    INFO(message);
    CHECK(contains(message, "NCCL_SOCKET_IFNAME: \"" + wanted + "\" names no network interface"));
    CHECK(contains(message, "lo (127.0.0.1)"));
    CHECK_FALSE(contains(message, "\n"));
  }
}

TEST_CASE("the way to a host") {
  CHECK(ddp::address_towards("127.0.0.1", 1) == "127.0.0.1");
  CHECK(ddp::is_loopback_address(ddp::address_towards("localhost", 1)));
  const std::string message =
      refusal<ddp::TransientError>([] { ddp::address_towards("no.such.host.invalid", 1); });
  CHECK(contains(message, "MASTER_ADDR=no.such.host.invalid cannot be resolved"));
}

TEST_CASE("a name is waited for, an address never") {
  using std::chrono::milliseconds;
  CHECK(contains(refusal<ddp::TransientError>(
                     [] { ddp::require_resolvable("no.such.host.invalid", milliseconds(10)); }),
                 "MASTER_ADDR=no.such.host.invalid cannot be resolved"));
  for (const std::string address : {"127.0.0.1", "::1", "192.0.2.7", "2001:db8::7"}) {
    CHECK_NOTHROW(ddp::require_resolvable(address, std::chrono::hours(24)));
  }
  CHECK(
      contains(refusal([] { ddp::require_resolvable("fe80::1%no-link", std::chrono::hours(24)); }),
               "MASTER_ADDR=fe80::1%no-link cannot be resolved"));
}

TEST_CASE("rank 0's address: never loopback unless nothing else is known") {
  CHECK(ddp::address_to_serve("192.0.2.7", "", "") == "192.0.2.7");
  CHECK(ddp::address_to_serve("192.0.2.7", "lo", "127.0.0.1") == "192.0.2.7");
  CHECK(ddp::address_to_serve("127.0.1.1", "", "") == "127.0.1.1");
  CHECK(ddp::address_to_serve("127.0.1.1", "lo", "") == "127.0.0.1");
  CHECK(ddp::address_to_serve("127.0.1.1", "", "127.0.0.1") == "127.0.0.1");
  CHECK(contains(refusal<ddp::TransientError>(
                     [] { ddp::address_to_serve("127.0.1.1", "", "no.such.host.invalid"); }),
                 "no.such.host.invalid cannot be resolved"));
  CHECK(contains(refusal([] { ddp::address_to_serve("127.0.1.1", "nope", ""); }), "\"nope\""));
  CHECK(ddp::address_to_publish("192.0.2.7", "") == "192.0.2.7");
  CHECK(ddp::address_to_publish("192.0.2.7", "lo") == "127.0.0.1");
}

TEST_CASE("listening on one address, and only there") {
  const ddp::Listener first = ddp::listen_on("127.0.0.1", 0);
  CHECK(first.port > 0);
  try {
    ddp::listen_on("127.0.0.1", first.port);
    FAIL("two listeners on one port");
  } catch (const ddp::TransientError& error) {
    CHECK(contains(error.what(), "127.0.0.1:" + std::to_string(first.port)));
  }
  const ddp::Listener other = ddp::listen_on("127.0.0.2", first.port);
  CHECK(other.port == first.port);
  CHECK_FALSE(ddp::is_refused("127.0.0.2", other.port));
  close(first.fd);
  close(other.fd);
  CHECK(ddp::is_refused("127.0.0.2", other.port));
  // An address of no interface here (TEST-NET-1).
  CHECK_THROWS_AS(ddp::listen_on("192.0.2.77", 0), ddp::TransientError);
}
