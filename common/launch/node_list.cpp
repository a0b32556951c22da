// common/launch/node_list.cpp - Slurm's compressed node lists, without asking scontrol (compute
// nodes may lack it).
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "common/base/parse.hpp"
#include "common/base/refuse.hpp"
#include "common/launch/launch_environment.hpp"

namespace ddp {

namespace {

constexpr size_t kMostHosts =
    65536;  // Slurm's own limit; stops "n[0-999999999]" from eating the memory
// The DNS's limit; 65536 names of any length would eat it, too.
constexpr size_t kMostNameBytes = 253;
constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNameCharacters =
    "0123456789-._abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Walks over the list once. Every refusal names the whole list and what is wrong with it.
class NodeListParser {
 public:
  explicit NodeListParser(const std::string& list) : list_(list), rest_(list) {}

  std::vector<std::string> parse() {
    std::vector<std::string> hosts;
    do {
      for (std::string& host : host_expression()) {
        hosts.push_back(std::move(host));
      }
      require(hosts.size() <= kMostHosts, "at most 65536 hosts");
    } while (take(','));
    require(rest_.empty(), "brackets in pairs");
    return hosts;
  }

 private:
  /// "room[1-2]rack[1-2]n[01-03]": as with Slurm, the last bracket varies fastest, and of those
  /// before it the first.
  std::vector<std::string> host_expression() {
    const std::string_view start = rest_;
    std::vector<std::string> hosts = {""};
    while (!rest_.empty() && rest_[0] != ',' && rest_[0] != ']') {
      const std::vector<std::string> parts =
          take('[') ? bracket() : std::vector<std::string>{name_part()};
      require(hosts.size() * parts.size() <= kMostHosts, "at most 65536 hosts");
      require(hosts.back().size() + parts.back().size() <= kMostNameBytes,
              "names of at most 253 characters");
      const size_t next = rest_.find_first_of("[,");
      const bool is_last = next == std::string::npos || rest_[next] == ',';
      std::vector<std::string> product(hosts.size() * parts.size());
      for (size_t host = 0; host < hosts.size(); ++host) {
        for (size_t part = 0; part < parts.size(); ++part) {
          product[is_last ? host * parts.size() + part : part * hosts.size() + host] =
              hosts[host] + parts[part];
        }
      }
      hosts = std::move(product);
    }
    require(rest_.size() < start.size(), "no empty name");
    require(start[0] != '[', "a name before the bracket");
    return hosts;
  }

  std::string name_part() {
    const std::string part = take_all(kNameCharacters);
    require(!part.empty(), "names of letters, digits, '-', '.' and '_'");
    return part;
  }

  /// "1-2,07]", after the opening bracket.
  std::vector<std::string> bracket() {
    std::vector<std::string> numbers;
    do {
      const std::string first = number();
      const std::string last = take('-') ? number() : first;
      const uint64_t low = std::stoull(first);
      const uint64_t high = std::stoull(last);
      require(low <= high, "ranges that ascend");
      require(high - low < kMostHosts && numbers.size() + (high - low) < kMostHosts,
              "at most 65536 hosts");
      for (uint64_t value = low; value <= high; ++value) {
        // The first number of a range sets the width: [08-11] is 08 09 10 11, [8-011] is 8 9 10 11.
        numbers.push_back(fmt::format("{:0{}}", value, first.size()));
      }
    } while (take(','));
    require(take(']'), "brackets in pairs, with numbers and ranges inside");
    return numbers;
  }

  std::string number() {
    constexpr size_t kMostDigits = 18;  // fits in 64 bits
    const std::string digits = take_all(kDigits);
    require(!digits.empty() && digits.size() <= kMostDigits, "numbers and ranges in the brackets");
    return digits;
  }

  bool take(char wanted) {
    const bool found = rest_.starts_with(wanted);
    rest_.remove_prefix(found ? 1 : 0);
    return found;
  }

  std::string take_all(std::string_view wanted) {
    const size_t length = std::min(rest_.find_first_not_of(wanted), rest_.size());
    const std::string taken(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return taken;
  }

  void require(bool holds, const char* expected) const {
    if (!holds) {
      refuse("node list: got {}, expected {}", quote(list_), expected);
    }
  }

  const std::string& list_;
  std::string_view rest_;
};

}  // namespace

std::vector<std::string> expand_node_list(const std::string& node_list) {
  return NodeListParser(node_list).parse();
}

}  // namespace ddp
