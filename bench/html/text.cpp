#include "bench/html/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/report/format.hpp"

namespace ddp::bench::html {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// U+FFFE and U+FFFF, which no XML document may hold.
bool is_noncharacter(std::string_view text, std::size_t at) {
  return text.substr(at, 2) == "\xEF\xBF" && at + 2 < text.size() &&
         static_cast<unsigned char>(text[at + 2]) >= 0xBEU;
}

std::string superscript(int number) {
  constexpr std::array<const char*, 10> kDigits = {"⁰", "¹", "²", "³", "⁴",
                                                   "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text;
  for (const char c : std::to_string(number)) {
    text += c == '-' ? "⁻" : kDigits[static_cast<std::size_t>(c - '0')];
  }
  return text;
}

bool is_shown(Number value) {
  return value && std::isfinite(*value);
}

/// "10⁶", "4.5·10⁹".
std::string scientific(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof(buffer), "%.1e", value);
  const std::string text = buffer;
  const std::size_t e = text.find('e');
  std::string mantissa = text.substr(0, e);
  if (mantissa.size() > 2 && mantissa.compare(mantissa.size() - 2, 2, ".0") == 0) {
    mantissa.resize(mantissa.size() - 2);
  }
  return (mantissa == "1" ? "" : mantissa + "·") + power_of_ten(std::atoi(text.c_str() + e + 1));
}

/// Numbers that would need more digits than anyone reads.
bool is_unwieldy(double value, double most) {
  const double size = std::abs(value);
  return size >= most || (size > 0 && size < 1e-4 * (1 + 1e-9));
}

}  // namespace

std::string escape(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (c == '\'') {
      escaped += "&#39;";
    } else if (is_noncharacter(text, i)) {
      escaped += kReplacement;
      i += 2;
    } else if ((static_cast<unsigned char>(c) < 0x20U && c != '\n' && c != '\t') || c == 0x7F) {
      escaped += kReplacement;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

std::string shortened(std::string_view text, std::size_t characters) {
  if (count_characters(text) <= characters) {
    return std::string(text);
  }
  std::size_t end = 0;
  for (std::size_t kept = 0; end < text.size(); ++end) {
    kept += is_continuation(text[end]) ? 0U : 1U;
    if (kept == characters) {
      break;
    }
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string power_of_ten(int exponent) {
  return "10" + superscript(exponent);
}

std::string show(Number value) {
  if (!is_shown(value)) {
    return kNothing;
  }
  if (is_unwieldy(*value, 1e7)) {
    return scientific(*value);
  }
  return std::abs(*value) >= 1e3 ? show_count(value) : format_significant(value);
}

std::string show_count(Number value) {
  if (!is_shown(value)) {
    return kNothing;
  }
  if (std::abs(*value) >= 1e12) {
    return scientific(*value);
  }
  return *value < 0 ? "-" + format_count(-*value) : format_count(value);
}

std::string show_fixed(Number value, int decimals) {
  if (!is_shown(value)) {
    return kNothing;
  }
  return std::abs(*value) >= 1e7 ? scientific(*value) : format_fixed(value, decimals);
}

std::string show_percent(Number share, int decimals) {
  return is_shown(share) ? show_fixed(100 * *share, decimals) + " %" : kNothing;
}

std::string show_signed_percent(Number share) {
  return is_shown(share) ? (*share > 0 ? "+" : "") + show_percent(share, 1) : kNothing;
}

std::string show_factor(Number factor) {
  return is_shown(factor) ? show(factor) + "×" : kNothing;
}

std::string show_size(Number bytes) {
  if (!is_shown(bytes)) {
    return kNothing;
  }
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = *bytes;
  std::size_t unit = 0;
  while (std::abs(size) >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  return (size == std::floor(size) ? show_count(size) : show(size)) + " " + kUnits[unit];
}

std::string show_efficiency(Number efficiency) {
  return is_shown(efficiency) && *efficiency >= 0 && *efficiency < 0.005
             ? "<0.01"
             : show_fixed(efficiency, 2);
}

std::string with_unit(const std::string& text, const char* unit) {
  return text == kNothing ? text : text + " " + unit;
}

std::string exact(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : "";
}

std::string ranks(int count) {
  return count == 1 ? "one rank" : std::to_string(count) + " ranks";
}

}  // namespace ddp::bench::html
