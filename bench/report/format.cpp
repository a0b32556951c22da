#include "bench/report/format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace ddp::bench {

std::string format_fixed(std::optional<double> value, int decimals) {
  if (!value || !std::isfinite(*value)) {
    return "-";
  }
  char buffer[400];  // the largest double has 309 digits before the point
  std::snprintf(buffer, sizeof(buffer), "%.*f", decimals, *value);
  return buffer;
}

std::string format_significant(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) {
    return "-";
  }
  const double magnitude = std::abs(*value) > 0 ? std::floor(std::log10(std::abs(*value))) : 0;
  return format_fixed(value, std::clamp(2 - static_cast<int>(magnitude), 0, 6));
}

std::string format_count(std::optional<double> value) {
  const std::string digits = format_fixed(value, 0);
  std::string grouped;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      grouped += ',';
    }
    grouped += digits[i];
  }
  return grouped;
}

std::string format_bytes(double bytes) {
  if (bytes < 1e3) {
    return format_fixed(bytes, 0) + " bytes";
  }
  return bytes < 1e6 ? format_significant(bytes / 1e3) + " KB"
                     : format_significant(bytes / 1e6) + " MB";
}

std::string format_percent(double share) {
  return format_fixed(100 * share, 0) + " %";
}

std::string format_small_number(int number) {
  constexpr std::array<const char*, 11> kWords = {"zero", "one",   "two",   "three", "four", "five",
                                                  "six",  "seven", "eight", "nine",  "ten"};
  return number >= 0 && number <= 10 ? kWords[static_cast<std::size_t>(number)]
                                     : std::to_string(number);
}

}  // namespace ddp::bench
