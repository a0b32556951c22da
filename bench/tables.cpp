#include "bench/tables.hpp"

#include "common/base/parse.hpp"

namespace ddp::bench {

std::vector<std::vector<std::string>> table_rows(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : split(std::string(text), '\n')) {
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    std::vector<std::string>& cells = rows.emplace_back();
    for (std::size_t begin = 0, end = 0; begin != std::string::npos;) {
      end = line.find("  ", begin);
      cells.push_back(line.substr(begin, end - begin));
      begin = line.find_first_not_of(' ', end);
    }
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
