// common/launch/launch_reader.cpp - variables, and the checks that all launchers share.
#include "common/launch/launch_reader.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "common/base/parse.hpp"

namespace ddp::internal {

namespace {

constexpr int kMaxPort = 65535;

/// False for what no look-up could make an address of: a URL, an address with its port or of four
/// too large numbers.
bool is_host_or_address(const std::string& host) {
  constexpr size_t kLongestName = 253;
  const std::string numbers = "0123456789.";
  const std::string words = numbers + "-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const size_t percent = host.find('%');  // "fe80::1%eth0": the link
  const std::string address = host.substr(0, percent);
  const std::string link = percent == std::string::npos ? "any" : host.substr(percent + 1);
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (address.find(':') != std::string::npos) {
    return inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1 && !link.empty() &&
           link.find_first_not_of(words) == std::string::npos;
  }
  if (host.find_first_not_of(numbers) == std::string::npos) {
    return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1;
  }
  return host.find_first_not_of(words) == std::string::npos && host.front() != '-' &&
         host.front() != '.' && host.size() <= kLongestName;
}

}  // namespace

std::optional<std::string> LaunchReader::text(const std::string& name) const {
  std::optional<std::string> value = getenv_(name);
  if (value && value->empty()) {
    throw UsageError(name + " is set but empty, expected a value");
  }
  return value;
}

std::optional<Sourced> LaunchReader::number(const std::string& name, int minimum,
                                            int maximum) const {
  const std::optional<std::string> value = getenv_(name);
  if (!value) {
    return std::nullopt;
  }
  return Sourced{parse_integer<int>(name, *value, minimum, maximum), name};
}

Sourced LaunchReader::need(const std::string& name, int minimum, int maximum) const {
  const std::optional<Sourced> value = number(name, minimum, maximum);
  if (!value) {
    throw UsageError(name + " is not set, expected an integer >= " + std::to_string(minimum) +
                     " next to the launcher's other variables (" + found_.launcher + ")");
  }
  return *value;
}

/// @throws UsageError if `name` is set to another number than `expected`, which `source` says
void LaunchReader::agrees_with(const char* name, int expected, const std::string& source) const {
  const std::optional<Sourced> value = number(name, 0);
  if (value && value->value != expected) {
    throw UsageError(std::string(name) + ": got " + std::to_string(value->value) + ", expected " +
                     std::to_string(expected) + " as " + source + " says");
  }
}

/// RANK next to an outer launcher of as many processes that calls this one by another number: an
/// "export RANK=$SLURM_PROCID" in the batch script, say, which makes all of them rank 0.
void LaunchReader::refuse_rank_of_another(const char* rank_name,
                                          const char* world_size_name) const {
  const std::optional<Sourced> world_size = number(world_size_name, 1);
  if (world_size && world_size->value == found_.world_size) {
    agrees_with(rank_name, found_.rank, "RANK");
  }
}

void require_below(const Sourced& small, const Sourced& limit) {
  if (small.value >= limit.value) {
    throw UsageError(small.source + ": got " + std::to_string(small.value) +
                     ", expected less than " + limit.source + " (" + std::to_string(limit.value) +
                     ")");
  }
}

void LaunchReader::set_identity(const Sourced& rank, const Sourced& world_size,
                                const Sourced& local_rank, const Sourced& local_world_size) {
  require_below(rank, world_size);
  if (local_world_size.value > world_size.value) {
    throw UsageError(local_world_size.source + ": got " + std::to_string(local_world_size.value) +
                     ", expected at most " + world_size.source + " (" +
                     std::to_string(world_size.value) + ")");
  }
  require_below(local_rank, local_world_size);
  // Every launcher counts the ranks of a node in the order of their global ranks.
  if (rank.value < local_rank.value) {
    throw UsageError(rank.source + ": got " + std::to_string(rank.value) + ", expected at least " +
                     local_rank.source + " (" + std::to_string(local_rank.value) + ")");
  }
  found_.rank = rank.value;
  found_.world_size = world_size.value;
  found_.local_rank = local_rank.value;
  found_.local_world_size = local_world_size.value;
  world_size_source_ = world_size.source;
  local_world_size_source_ = local_world_size.source;
  record("rank", rank);
  record("world_size", world_size);
  record("local_rank", local_rank);
  record("local_world_size", local_world_size);
}

void LaunchReader::set_nodes(const Sourced& node_rank, const Sourced& num_nodes) {
  require_below(node_rank, num_nodes);
  if (num_nodes.value > found_.world_size ||
      (num_nodes.value == 1) != (found_.local_world_size == found_.world_size)) {
    throw UsageError(num_nodes.source + ": got " + std::to_string(num_nodes.value) +
                     (num_nodes.value == 1 ? " node" : " nodes") + ", expected as many as fit " +
                     world_size_source_ + " (" + std::to_string(found_.world_size) + ") and " +
                     local_world_size_source_ + " (" + std::to_string(found_.local_world_size) +
                     ") on this node");
  }
  found_.node_rank = node_rank.value;
  found_.num_nodes = num_nodes.value;
  record("node_rank", node_rank);
  record("num_nodes", num_nodes);
}

/// Nobody counts the nodes: as many as there are groups of the local size, ranks in order.
void LaunchReader::set_even_nodes() {
  const std::string rule = "derived: every node has as many processes as this one";
  if (found_.world_size % found_.local_world_size != 0) {
    throw UsageError(world_size_source_ + ": got " + std::to_string(found_.world_size) +
                     ", expected a multiple of " + local_world_size_source_ + " (" +
                     std::to_string(found_.local_world_size) + "), or GROUP_WORLD_SIZE nodes");
  }
  const int num_nodes = found_.world_size / found_.local_world_size;
  const std::optional<Sourced> node_rank = number("GROUP_RANK", 0);
  set_nodes(node_rank.value_or(Sourced{found_.rank / found_.local_world_size, rule}),
            {num_nodes, rule});
}

// ---- The store.

/// --master-addr, --master-port, MASTER_ADDR and MASTER_PORT. @return true if both parts are known
bool LaunchReader::find_master() {
  std::string host_source = "--master-addr";
  std::string host = options_.master_addr;
  if (host.empty()) {
    host_source = "MASTER_ADDR";
    host = text(host_source).value_or("");
  }
  const std::string given = host;
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);  // "[fd00::1]", as in addresses with a port
  }
  if (!given.empty() && !is_host_or_address(host)) {
    throw UsageError(host_source + ": got " + quote(given) +
                     ", expected a host name or an address, without a port");
  }
  if (host == "0.0.0.0" || host == "::") {
    throw UsageError(host_source + ": got " + quote(given) +
                     ", expected an address of one host; this one means all of a host's own");
  }
  std::optional<Sourced> port = flag(options_.master_port, "--master-port");
  if (!port) {
    port = number("MASTER_PORT", 1, kMaxPort);
  }
  if (!host.empty()) {
    found_.store.host = host;
    record("store.host", host, host_source);
  }
  if (port) {
    found_.store.port = port->value;
    record("store.port", *port);
  }
  found_.store.kind = StoreLocation::Kind::kTcp;
  return !host.empty() && port;
}

void LaunchReader::require_master(const std::string& hint) {
  if (!find_master()) {
    throw UsageError(std::string(found_.store.host.empty() ? "MASTER_ADDR" : "MASTER_PORT") +
                     " is not set, expected " + hint);
  }
}

/// A file whose name no other job and no other user picks.
void LaunchReader::set_shared_file(const std::string& folder, const std::string& job) {
  std::string name = job;
  for (char& c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
    c = plain ? c : '_';
  }
  found_.store.kind = StoreLocation::Kind::kSharedFile;
  found_.store.file = folder + "/ddp-store-" + std::to_string(geteuid()) + "-" + name;
  record("store.file", found_.store.file, "derived from the job's id");
}

/// Launchers nest, so their restarts add up: a requeued Slurm job is a restart whatever torchrun
/// says.
void LaunchReader::add_restarts(const char* name) {
  if (const std::optional<Sourced> count = number(name, 0, 1 << 20)) {
    found_.restart_count += count->value;
    record("restart_count", *count);
  }
}

}  // namespace ddp::internal
