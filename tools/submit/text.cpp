// tools/submit/text.cpp - small things about text: UTF-8, messages, near misses, words.
#include "tools/submit/text.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>

#include "common/base/exit_codes.hpp"

namespace ddp::submit {
namespace {

/// Levenshtein's distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j < row.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

/// Bytes of `text` that can be shown: one character, or 0 for a control character or no UTF-8.
std::size_t readable_length(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text.front());
  return byte < 0x20 || byte == 0x7f ? 0 : utf8_length(text);
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) {
    return 0;
  }
  std::uint32_t code = first & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0U) != 0x80U) {
      return 0;
    }
    code = (code << 6U) | (byte & 0x3fU);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return overlong || surrogate || code > 0x10ffff ? 0 : length;
}

std::string quote_bytes(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string quoted = "\"";
  std::size_t i = 0;
  while (i < text.size() && i < kLongest) {
    if (const std::size_t length = readable_length(text.substr(i)); length > 0) {
      quoted += text.substr(i, length);
      i += length;
    } else {
      const auto byte = static_cast<unsigned char>(text[i++]);
      quoted += {'\\', 'x', kHexDigits[byte >> 4U], kHexDigits[byte & 15U]};
    }
  }
  return quoted + (i < text.size() ? "...\"" : "\"");
}

std::string quote_path(const std::string& path) {
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t length = readable_length(rest);
    if (length == 0) {
      return quote_bytes(path);
    }
    rest.remove_prefix(length);
  }
  return path;
}

void refuse_value(const std::string& name, const std::string& got, const std::string& expected) {
  throw UsageError(name + ": got " + got + ", expected " + expected);
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const auto spelled = [](const std::string& text) {
    std::string result = lower_case(text);
    std::replace(result.begin(), result.end(), '-', '_');
    return result;
  };
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(spelled(word), spelled(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string any_of(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return text;
}

bool is_plain(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [others](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::optional<int>(value) : std::nullopt;
}

std::vector<std::string> split(std::string_view text, char separator, std::size_t most_parts) {
  std::vector<std::string> parts;
  for (std::size_t end;
       parts.size() + 1 < most_parts && (end = text.find(separator)) != std::string_view::npos;) {
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.emplace_back(text);
  return parts;
}

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace ddp::submit
