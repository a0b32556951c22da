// Addresses for peers, and ports. For several hosts see two_hosts_test.py.
#include "common/meet/address.hpp"

#include <algorithm>

#include "common/base/exit_codes.hpp"
#include "tests/support/catch.hpp"

TEST_CASE("an address with its port") {
  CHECK(ddp::endpoint("n1", 29500) == "n1:29500");
  CHECK(ddp::endpoint("fd00::1", 29500) == "[fd00::1]:29500");
}

TEST_CASE("loopback addresses") {
  for (const char* const address : {"localhost", "127.0.1.1", "::1", "::ffff:127.0.0.1"}) {
    CHECK(ddp::is_loopback_address(address));
  }
  for (const char* const address : {"10.0.0.1", "128.0.0.1", "fd00::1", "::", "n1", ""}) {
    CHECK_FALSE(ddp::is_loopback_address(address));
  }
}

TEST_CASE("an interface is asked for by name, and refused with those that exist") {
  CHECK(ddp::addresses_of_interface("lo").front() == "127.0.0.1");
  for (const std::string name : {"nope", "", "lo ", "LO", "127.0.0.1"}) {
    const auto message = message_of<ddp::UsageError>([&] { ddp::addresses_of_interface(name); });
    CHECK(contains(message, "--interface: got \"" + name + "\""));
    CHECK(contains(message, "lo (127.0.0.1)"));
  }
}

TEST_CASE("the way to a host, and the addresses that rank 0 publishes") {
  CHECK(ddp::addresses_towards({"127.0.0.1", "127.0.0.2"}, 1) ==
        std::vector<std::string>{"127.0.0.1"});
  CHECK_THROWS_AS(ddp::addresses_towards({"no-such-host.invalid"}, 1), ddp::TransientError);
  CHECK_THROWS_AS(ddp::require_resolvable("no-such-host.invalid", std::chrono::milliseconds(1)),
                  ddp::TransientError);
  CHECK_NOTHROW(ddp::require_resolvable("localhost", std::chrono::hours(24)));
  CHECK(ddp::addresses_to_publish("192.0.2.7", "").front() == "192.0.2.7");
  CHECK(ddp::addresses_to_publish("192.0.2.7", "lo").front() == "127.0.0.1");
  for (const std::string name : {"127.0.1.1", "fe80::1%lo"}) {
    const std::vector<std::string> own = ddp::addresses_to_publish(name, "");
    REQUIRE_FALSE(own.empty());
    CHECK(std::ranges::find(own, name) == own.end());
    CHECK(ddp::is_this_host(own.front()));
  }
}

TEST_CASE("a name is told with its addresses, and known as this host's or not") {
  CHECK(contains(ddp::addresses_in_brackets("localhost"), "127.0.0.1"));
  CHECK(ddp::addresses_in_brackets("192.0.2.7").empty());
  CHECK(ddp::addresses_in_brackets("no-such-host.invalid").empty());
  CHECK(ddp::is_this_host("localhost"));
  CHECK_FALSE(ddp::is_this_host("192.0.2.7"));
}
