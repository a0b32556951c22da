// bench/words.hpp - lists on a command line, and command lines as text.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace ddp::bench {

/// "shm,gloo" -> {"shm", "gloo"}
inline std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream list(text + ',');
  for (std::string part; std::getline(list, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

/// Line for a POSIX shell. Words must not have single quotes.
inline std::string shell_line(const std::vector<std::string>& words) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  std::string line;
  for (const std::string& word : words) {
    const bool is_plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    line += (line.empty() ? "" : " ") + (is_plain ? word : "'" + word + "'");
  }
  return line;
}

}  // namespace ddp::bench
