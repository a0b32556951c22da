#include "bench/report/benchmark_json.hpp"

#include <algorithm>
#include <cctype>

namespace ddp::bench {
namespace {

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

nlohmann::ordered_json parse_benchmark_json(const std::string& text) {
  std::string valid;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text[i] == '"') {
      while (end < text.size() && text[end] != '"') {
        end += text[end] == '\\' ? 2U : 1U;
      }
      end = std::min(end + 1, text.size());
    } else if (is_letter(text[i]) && (i == 0 || text[i - 1] < '0' || text[i - 1] > '9')) {
      // Outside of strings, and not the e of an exponent: true, false, null, NaN, inf.
      while (end < text.size() && is_letter(text[end])) {
        ++end;
      }
      const std::string word = text.substr(i, end - i);
      if (word != "true" && word != "false" && word != "null") {
        valid.erase(valid.find_last_not_of('-') + 1);
        valid += "null";
        i = end;
      }
    }
    valid.append(text, i, end - i);
    i = end;
  }
  return nlohmann::ordered_json::parse(valid);
}

}  // namespace ddp::bench
