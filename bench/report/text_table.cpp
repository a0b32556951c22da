#include "bench/report/text_table.hpp"

#include <algorithm>

namespace ddp::bench {

std::vector<std::string> format_table(const std::vector<Column>& columns,
                                      const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> titles;
  titles.reserve(columns.size());
  for (const Column& column : columns) {
    titles.push_back(column.title);
  }
  std::vector<std::vector<std::string>> all = {titles};
  all.insert(all.end(), rows.begin(), rows.end());

  std::vector<std::size_t> widths(columns.size());
  for (const std::vector<std::string>& row : all) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::vector<std::string> lines;
  lines.reserve(all.size());
  for (const std::vector<std::string>& row : all) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += " " + (columns[i].left ? row[i] + padding : padding + row[i]) + " ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace ddp::bench
