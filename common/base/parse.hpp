// common/base/parse.hpp - strict parsing of the command line and the environment.
#pragma once

#include <algorithm>
#include <bit>
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

/// Length of the character at the beginning of `text`; 0 if it is a control character or no UTF-8.
inline size_t printable_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) {
    return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  }
  const auto length = static_cast<size_t>(std::countl_one(lead));
  if (length < 2 || length > 4 || text.size() < length) {
    return 0;
  }
  uint32_t code = lead & (0xffU >> length);
  for (const char next : text.substr(1, length - 1)) {
    if ((next & 0xc0) != 0x80) {
      return 0;
    }
    code = code << 6 | (static_cast<unsigned char>(next) & 0x3fU);
  }
  // By length: the least code that needs so many bytes, without the control characters below 0xa0.
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool is_character =
      code >= kLeast[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_character ? length : 0;
}

/// `text` on one line for a terminal, whatever a file or a library has put into it.
inline std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t length = printable_bytes(text);
    if (length == 0) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
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
