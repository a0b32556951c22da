// common/base/parse.hpp - strict parsing of the command line and the environment.
#pragma once

#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "common/base/exit_codes.hpp"

namespace ddp {

/// The beginning of a long text, for messages.
inline std::string shorten(std::string_view text) {
  constexpr size_t kLongest = 200;
  return std::string(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "");
}

/// `text` in quotation marks on one line, whatever it holds; long texts are cut.
inline std::string quote(std::string_view text) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : shorten(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      quoted += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
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
inline double parse_positive(const std::string& name, std::string_view text,
                             double maximum = std::numeric_limits<double>::max()) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || !(value > 0) ||
      value > maximum) {
    const bool bounded = maximum != std::numeric_limits<double>::max();
    throw UsageError(name + ": got " + quote(text) + ", expected a finite number > 0" +
                     (bounded ? " and <= " + std::to_string(static_cast<long long>(maximum)) : ""));
  }
  return value;
}

}  // namespace ddp
