// common/base/parse.hpp - strict parsing of the command line and the environment.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "common/base/exit_codes.hpp"

namespace ddp {

/// "sgd,adam" -> {"sgd", "adam"}
inline std::vector<std::string> split(const std::string& text, char separator = ',') {
  std::vector<std::string> parts;
  std::istringstream list(text + separator);
  for (std::string part; std::getline(list, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

/// Number after the word `name`, as in files of /proc; 0 without it.
inline int64_t number_after(const std::string& name, const std::string& text) {
  std::istringstream words(text);
  int64_t value = 0;
  for (std::string word; words >> word;) {
    if (word == name && words >> value) {
      break;
    }
  }
  return value;
}

/// The beginning of a long text, for messages.
inline std::string shorten(std::string_view text) {
  constexpr size_t kLongest = 200;
  return std::string(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "");
}

/// `text` on one line for a terminal, whatever a file or a library has put into it.
inline std::string printable(std::string_view text) {
  const std::string quoted = fmt::format("{:?}", text);
  std::string line = quoted.substr(1, quoted.size() - 2);
  for (size_t at = 0; (at = line.find('\\', at)) != std::string::npos; ++at) {
    if (line[at + 1] == '"' || line[at + 1] == '\\') {
      line.erase(at, 1);  // what a terminal shows as it is
    }
  }
  return line;
}

/// `text` in quotation marks on one line; long texts are cut.
inline std::string quote(std::string_view text) {
  return '"' + printable(shorten(text)) + '"';
}

/// The number that all of `text` is, if it is one.
template <typename Number>
std::optional<Number> as_number(std::string_view text) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

/// Digits only: no sign, blank, exponent, base prefix or overflow.
/// @throws UsageError naming `name`, the text and the range
template <typename Integer>
Integer parse_integer(const std::string& name, std::string_view text, Integer minimum,
                      Integer maximum = std::numeric_limits<Integer>::max()) {
  const std::optional<Integer> value = as_number<Integer>(text);
  if (!value || text.front() == '-' || *value < minimum || *value > maximum) {
    const bool bounded = maximum != std::numeric_limits<Integer>::max();
    refuse("{}: got {}, expected an integer {} {}{}", name, quote(text),
           bounded ? "from" : ">=", minimum, bounded ? fmt::format(" to {}", maximum) : "");
  }
  return *value;
}

/// A decimal number in (0, maximum]: "0.1", "1e-3"; never NaN or infinite.
/// @throws UsageError naming `name`, the text and the range
inline double parse_positive(const std::string& name, std::string_view text, double maximum) {
  const std::optional<double> value = as_number<double>(text);
  if (!value || !(*value > 0 && *value <= maximum)) {  // refuses NaN too
    refuse("{}: got {}, expected a finite number > 0 and <= {}", name, quote(text),
           static_cast<int64_t>(maximum));
  }
  return *value;
}

}  // namespace ddp
