// tools/submit/quoting.cpp - HTCondor's and the shell's spelling of any text.
#include "tools/submit/quoting.hpp"

#include <algorithm>

#include "common/base/exit_codes.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

/// Besides letters and digits: what neither HTCondor nor a shell treats as anything else.
constexpr std::string_view kPlainOthers = "_-+=./:,@%";

/// Behind a dollar, in any case: the one text that HTCondor has no spelling for.
constexpr std::string_view kUnspeakable = "(dollar)";

/// See Note [Dollars].
std::string escape_dollars(const std::string& name, std::string_view text) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$') {
      escaped += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == '$') {
      escaped += "$$(DOLLARDOLLAR)";
      ++i;
    } else if (lower_case(text.substr(i + 1, kUnspeakable.size())) == kUnspeakable) {
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

void check_argument(const std::string& name, std::string_view text) {
  constexpr std::size_t kLongest = 65536;
  if (text.size() > kLongest) {
    refuse_value(name, std::to_string(text.size()) + " bytes",
                 "at most " + std::to_string(kLongest));
  }
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(utf8_length(rest))) {
    if (utf8_length(rest) == 0) {
      refuse_value(name, quote_bytes(text), "UTF-8 text");
    }
  }
  const auto is_refused = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  };
  if (std::any_of(text.begin(), text.end(), is_refused)) {
    refuse_value(name, quote_bytes(text), "text on one line without control characters");
  }
}

void check_text(const std::string& name, std::string_view text) {
  if (text.empty()) {
    refuse_value(name, "an empty text", "a value");
  }
  check_argument(name, text);
}

std::string condor_arguments(const std::vector<std::string>& arguments) {
  std::string line = "\"";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = "program argument " + std::to_string(i + 1);
    line += (i == 0 ? "" : " ") + condor_word(escape_dollars(name, arguments[i]));
  }
  return line + "\"";
}

std::string condor_path(const std::string& name, const std::string& path) {
  // Where condor_submit opens or looks at the file itself, the second expansion has not been yet.
  if (path.find("$$") != std::string::npos) {
    refuse_value(name, quote_bytes(path), "a path without $$, which HTCondor replaces");
  }
  if (path.back() == '\\') {
    refuse_value(name, quote_bytes(path),
                 "a path that does not end in a backslash, which continues the line "
                 "for HTCondor");
  }
  return escape_dollars(name, path);
}

std::string shell_quote(std::string_view text) {
  if (!text.empty() && is_plain(text, kPlainOthers)) {
    return std::string(text);
  }
  return "'" + replaced(text, '\'', "'\\''") + "'";
}

std::string shell_line(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& argument : argv) {
    line += (line.empty() ? "" : " ") + shell_quote(argument);
  }
  return line;
}

}  // namespace ddp::submit
