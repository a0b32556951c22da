// common/base/parse.hpp - strict parsing of the command line and the environment.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
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

/// Length of the character at the beginning of `text`; 0 if it is a control character or no UTF-8.
inline size_t printable_bytes(std::string_view text) {
  const auto byte = [text](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (length == 0 || text.size() < length) {
    return 0;
  }
  uint32_t code = lead & (0xffU >> (length + 1));
  for (size_t at = 1; at < length; ++at) {
    if (byte(at) >> 6 != 2) {
      return 0;
    }
    code = code << 6 | (byte(at) & 0x3fU);
  }
  // By length: the least code that needs so many bytes, without the control characters below 0xa0.
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool is_character =
      code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_character ? length : 0;
}

/// `text` on one line for a terminal, whatever a file or a library has put into it.
inline std::string printable(std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string line;
  while (!text.empty()) {
    const size_t length = printable_bytes(text);
    if (length == 0) {
      const auto byte = static_cast<unsigned char>(text.front());
      line += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    }
    line += text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return line;
}

/// `text` in quotation marks on one line; long texts are cut.
inline std::string quote(std::string_view text) {
  return '"' + printable(shorten(text)) + '"';
}

/// Digits only: no sign, blank, exponent, base prefix or overflow.
/// @throws UsageError naming `name`, the text and the range
template <typename Integer>
Integer parse_integer(const std::string& name, std::string_view text, Integer minimum,
                      Integer maximum = std::numeric_limits<Integer>::max()) {
  Integer value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool negative = !text.empty() && text.front() == '-';
  if (negative || error != std::errc() || stop != end || value < minimum || value > maximum) {
    const bool bounded = maximum != std::numeric_limits<Integer>::max();
    throw UsageError(name + ": got " + quote(text) + ", expected an integer " +
                     (bounded ? "from " : ">= ") + std::to_string(minimum) +
                     (bounded ? " to " + std::to_string(maximum) : ""));
  }
  return value;
}

/// A decimal number in (0, maximum]: "0.1", "1e-3"; never NaN or infinite.
/// @throws UsageError naming `name`, the text and the range
inline double parse_positive(const std::string& name, std::string_view text, double maximum) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || !(value > 0) ||
      value > maximum) {
    throw UsageError(name + ": got " + quote(text) + ", expected a finite number > 0 and <= " +
                     std::to_string(static_cast<long long>(maximum)));
  }
  return value;
}

}  // namespace ddp
