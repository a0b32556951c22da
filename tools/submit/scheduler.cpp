#include "tools/submit/scheduler.hpp"

#include <fstream>
#include <iterator>

namespace ddp::submit {

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> split(std::string_view text, char separator, std::size_t most_parts) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < most_parts) {
    const std::size_t end = text.find(separator);
    if (end == std::string_view::npos) {
      break;
    }
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.emplace_back(text);
  return parts;
}

}  // namespace ddp::submit
