// common/launch/node_list.cpp - Slurm's compressed node lists, without asking scontrol (compute
// nodes may lack it).
#include <string_view>

#include "common/base/parse.hpp"
#include "common/launch/launch_environment.hpp"

namespace ddp {

namespace {

constexpr size_t kMostHosts =
    65536;  // Slurm's own limit; stops "n[0-999999999]" from eating the memory

/// Walks over the list once. Every refusal names the whole list and what is wrong with it.
class NodeListParser {
 public:
  explicit NodeListParser(const std::string& list) : list_(list) {}

  std::vector<std::string> parse() {
    std::vector<std::string> hosts;
    do {
      for (std::string& host : host_expression()) {
        hosts.push_back(std::move(host));
      }
      require(hosts.size() <= kMostHosts, "at most 65536 hosts");
    } while (take(','));
    require(position_ == list_.size(), "brackets in pairs");
    return hosts;
  }

 private:
  /// "room[1-2]rack[1-2]n[01-03]": as with Slurm, the last bracket varies fastest, and of those
  /// before it the first.
  std::vector<std::string> host_expression() {
    const size_t start = position_;
    std::vector<std::string> hosts = {""};
    while (position_ < list_.size() && list_[position_] != ',' && list_[position_] != ']') {
      if (take('[')) {
        const std::vector<std::string> numbers = bracket();
        require(hosts.size() * numbers.size() <= kMostHosts, "at most 65536 hosts");
        std::vector<std::string> product;
        const size_t next = list_.find_first_of("[,", position_);
        if (next != std::string::npos && list_[next] == '[') {
          for (const std::string& number : numbers) {
            for (const std::string& host : hosts) {
              product.push_back(host + number);
            }
          }
        } else {
          for (const std::string& host : hosts) {
            for (const std::string& number : numbers) {
              product.push_back(host + number);
            }
          }
        }
        hosts = std::move(product);
      } else {
        const char c = list_[position_++];
        require(is_digit(c) || is_letter(c) || c == '-' || c == '.' || c == '_',
                "names of letters, digits, '-', '.' and '_'");
        for (std::string& host : hosts) {
          host += c;
        }
      }
    }
    require(position_ > start, "no empty name");
    require(list_[start] != '[', "a name before the bracket");
    return hosts;
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
        std::string digits = std::to_string(value);
        // The first number of a range sets the width: [08-11] is 08 09 10 11, [8-011] is 8 9 10 11.
        digits.insert(0, first.size() > digits.size() ? first.size() - digits.size() : 0, '0');
        numbers.push_back(std::move(digits));
      }
    } while (take(','));
    require(take(']'), "brackets in pairs, with numbers and ranges inside");
    return numbers;
  }

  std::string number() {
    constexpr size_t kMostDigits = 18;  // fits in 64 bits
    const size_t start = position_;
    while (position_ < list_.size() && is_digit(list_[position_])) {
      ++position_;
    }
    require(position_ > start && position_ - start <= kMostDigits,
            "numbers and ranges in the brackets");
    return list_.substr(start, position_ - start);
  }

  bool take(char wanted) {
    if (position_ < list_.size() && list_[position_] == wanted) {
      ++position_;
      return true;
    }
    return false;
  }

  void require(bool holds, const char* expected) const {
    if (!holds) {
      throw UsageError("node list: got " + quote(list_) + ", expected " + expected);
    }
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  const std::string& list_;
  size_t position_ = 0;
};

}  // namespace

std::vector<std::string> expand_node_list(const std::string& node_list) {
  return NodeListParser(node_list).parse();
}

}  // namespace ddp
