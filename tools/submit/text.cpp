// tools/submit/text.cpp - UTF-8, messages, words, HTCondor's and the shell's spelling of any text.
#include "tools/submit/text.hpp"

#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace ddp::submit {
namespace {

/// Besides letters and digits: what neither HTCondor nor a shell treats as anything else.
constexpr std::string_view kPlainOthers = "_-+=./:,@%";

/// Behind a dollar, in any case: the one text that HTCondor has no spelling for.
constexpr std::string_view kUnspeakable = "(dollar)";

/// With "\xff" for every byte that cannot be shown: a control character's, or no UTF-8.
std::string readable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = is_control(text.front()) ? 0 : utf8_length(text);
    shown += length > 0 ? std::string(text.substr(0, length))
                        : fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return shown;
}

/// See Note [Dollars].
std::string escape_dollars(const std::string& name, std::string_view text) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$') {
      escaped += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == '$') {
      escaped += "$$(DOLLARDOLLAR)";
      ++i;
    } else if (equals_in_any_case(text.substr(i + 1, kUnspeakable.size()), kUnspeakable)) {
      refuse_value(name, quote_bytes(text),
                   "no $(DOLLAR), which HTCondor replaces however it is written");
    } else {
      escaped += "$(DOLLAR)";
    }
  }
  return escaped;
}

/// `text` with every `from` replaced.
std::string replaced(std::string_view text, char from, std::string_view to) {
  std::string result;
  for (const char c : text) {
    result += c == from ? std::string(to) : std::string(1, c);
  }
  return result;
}

/// One argument inside the double quotes. Single quotes are needed around blanks and quotes only,
/// but do no harm elsewhere: they keep an argument from being read as anything else.
std::string condor_word(std::string_view text) {
  if (!text.empty() && is_plain(text, kPlainOthers)) {
    return std::string(text);
  }
  return "'" + replaced(replaced(text, '\'', "''"), '"', "\"\"") + "'";
}

}  // namespace

void refuse_value(const std::string& name, const std::string& got, const std::string& expected) {
  refuse("{}: got {}, expected {}", name, got, expected);
}

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

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

std::string quote_bytes(std::string_view text) {
  constexpr std::size_t kLongest = 200;
  const bool is_long = text.size() > kLongest;
  return "\"" + readable(text.substr(0, kLongest)) + (is_long ? "...\"" : "\"");
}

std::string quote_path(const std::string& path) {
  return readable(path) == path ? path : quote_bytes(path);
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

bool equals_in_any_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
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

std::string absolute_path(const std::string& folder, const std::string& path) {
  const auto whole = (std::filesystem::path(folder) / path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).string();
}

void check_argument(const std::string& name, std::string_view text) {
  constexpr std::size_t kLongest = 65536;
  if (text.size() > kLongest) {
    refuse_value(name, fmt::format("{} bytes", text.size()), fmt::format("at most {}", kLongest));
  }
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(utf8_length(rest))) {
    if (utf8_length(rest) == 0) {
      refuse_value(name, quote_bytes(text), "UTF-8 text");
    }
  }
  if (std::any_of(text.begin(), text.end(), [](char c) { return is_control(c) && c != '\t'; })) {
    refuse_value(name, quote_bytes(text), "text on one line without control characters");
  }
}

void check_text(const std::string& name, std::string_view text) {
  if (text.empty()) {
    refuse_value(name, "an empty text", "a value");
  }
  check_argument(name, text);
}

void check_path(const std::string& name, const std::string& path) {
  constexpr std::size_t kLongest = 2000;
  constexpr std::string_view kBlanks = " \t";
  check_text(name, path);
  if (kBlanks.find(path.front()) != std::string_view::npos ||
      kBlanks.find(path.back()) != std::string_view::npos) {
    refuse_value(name, quote_bytes(path), "a path without blanks at its ends");
  }
  if (path.find('\t') != std::string::npos) {
    refuse_value(name, quote_bytes(path), "a path without tabs");
  }
  if (path.size() > kLongest) {
    refuse_value(name, fmt::format("{} bytes", path.size()),
                 fmt::format("a path of at most {}", kLongest));
  }
}

std::string condor_arguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (const std::string& argument : arguments) {
    const std::string name = fmt::format("program argument {}", words.size() + 1);
    words.push_back(condor_word(escape_dollars(name, argument)));
  }
  return fmt::format("\"{}\"", fmt::join(words, " "));
}

std::string condor_path(const std::string& name, const std::string& path) {
  // Where condor_submit opens or looks at the file itself, the second expansion has not been yet.
  if (path.find("$$") != std::string::npos) {
    refuse_value(name, quote_bytes(path), "a path without $$, which HTCondor replaces");
  }
  if (path.back() == '\\') {
    refuse_value(name, quote_bytes(path),
                 "a path that does not end in a backslash, which continues the line for HTCondor");
  }
  return escape_dollars(name, path);
}

}  // namespace ddp::submit
