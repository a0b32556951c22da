#include "bench/report/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace ddp::bench {

std::string format_shortest(double value) {
  std::array<char, 32> buffer{};
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

std::string format_fixed(std::optional<double> value, int decimals) {
  return value && std::isfinite(*value) ? fmt::format("{:.{}f}", *value, decimals) : "-";
}

std::string format_significant(std::optional<double> value) {
  const double size = std::abs(value.value_or(0));
  const double magnitude = size > 0 && std::isfinite(size) ? std::floor(std::log10(size)) : 0;
  return format_fixed(value, std::clamp(2 - static_cast<int>(magnitude), 0, 6));
}

std::string format_count(std::optional<double> value) {
  std::string digits = format_fixed(value, 0);
  for (std::size_t end = digits.size(); end > 3; end -= 3) {
    digits.insert(end - 3, ",");
  }
  return digits;
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

std::vector<std::string> format_table(std::span<const Column> columns,
                                      const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> lines(1 + rows.size(), " ");
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::vector<std::string> cells = {columns[i].title};
    std::ranges::transform(rows, std::back_inserter(cells),
                           [i](const auto& row) { return row[i]; });
    const std::size_t width = std::ranges::max(cells, {}, &std::string::size).size();
    for (std::size_t k = 0; k < cells.size(); ++k) {
      const std::string padding(width - cells[k].size(), ' ');
      lines[k] += " " + (columns[i].left ? cells[k] + padding : padding + cells[k]) + " ";
    }
  }
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
  }
  return lines;
}

}  // namespace ddp::bench
