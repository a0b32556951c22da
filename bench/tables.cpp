#include "bench/tables.hpp"

#include <regex>

#include "common/base/parse.hpp"

namespace ddp::bench {

std::vector<std::vector<std::string>> table_rows(std::string_view text) {
  static const std::regex gap("  +");
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : split(std::string(text), '\n')) {
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    rows.emplace_back(std::sregex_token_iterator(line.begin(), line.end(), gap, -1),
                      std::sregex_token_iterator());
  }
  return rows;
}

std::vector<std::string> cell_parts(const std::string& cell) {
  return cell == "-" ? std::vector<std::string>() : split(cell);
}

const std::vector<Column>& columns() {
  static const std::vector<Column> all = [] {
    std::vector<Column> made;
    for (const auto& row : table_rows(kColumnsList)) {
      made.push_back({cell_parts(row.at(0)), row.at(1), row.at(3), row.at(4), row.at(5)});
    }
    return made;
  }();
  return all;
}

}  // namespace ddp::bench
