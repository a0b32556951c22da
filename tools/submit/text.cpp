#include "tools/submit/text.hpp"

#include <algorithm>
#include <cstdint>

#include "common/base/parse.hpp"

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

bool is_control(unsigned char byte) {
  return byte < 0x20 || byte == 0x7f;
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

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

std::string quote_bytes(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string quoted = "\"";
  std::size_t i = 0;
  while (i < text.size() && i < kLongest) {
    const std::size_t length = utf8_length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0 || is_control(byte)) {
      quoted += {'\\', 'x', kHexDigits[byte >> 4U], kHexDigits[byte & 15U]};
      ++i;
    } else {
      quoted += text.substr(i, length);
      i += length;
    }
  }
  return quoted + (i < text.size() ? "...\"" : "\"");
}

std::string quote_path(const std::string& path) {
  const bool readable = is_utf8(path) && std::none_of(path.begin(), path.end(), [](char c) {
                          return is_control(static_cast<unsigned char>(c));
                        });
  return readable ? path : quote_bytes(path);
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string lower = word;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c == '-' ? '_' : c;
  });
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    std::string spelled = candidate;
    std::replace(spelled.begin(), spelled.end(), '-', '_');
    const std::size_t distance = edit_distance(lower, spelled);
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

}  // namespace ddp::submit
