#include "bench/report/benchmark_json.hpp"

#include <cctype>

namespace ddp::bench {

using nlohmann::ordered_json;

ordered_json parse_benchmark_json(const std::string& text) {
  std::string valid;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      valid += c;
      if (c == '\\' && i + 1 < text.size()) {
        valid += text[++i];
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
      valid += c;
      continue;
    }
    // Outside of strings letters are literals: true, false, null, NaN, Infinity, inf, nan.
    std::size_t end = i;
    while (end < text.size() && std::isalpha(static_cast<unsigned char>(text[end])) != 0) {
      ++end;
    }
    const std::string word = text.substr(i, end - i);
    const bool exponent = (word == "e" || word == "E") && i > 0 &&
                          std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0;
    if (word.empty() || exponent || word == "true" || word == "false" || word == "null") {
      valid += word.empty() ? std::string(1, c) : word;
    } else {
      if (!valid.empty() && valid.back() == '-') {
        valid.pop_back();
      }
      valid += "null";
    }
    i = word.empty() ? i : end - 1;
  }
  return ordered_json::parse(valid);
}

}  // namespace ddp::bench
