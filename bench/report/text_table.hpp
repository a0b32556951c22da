// bench/report/text_table.hpp - rows of cells as lines of equal columns.
#pragma once

#include <string>
#include <vector>

namespace ddp::bench {

struct Column {
  std::string title;
  bool left;  ///< aligned to the left
};

/// The line of titles, then one line a row, each with as many cells as there are columns.
std::vector<std::string> format_table(const std::vector<Column>& columns,
                                      const std::vector<std::vector<std::string>>& rows);

}  // namespace ddp::bench
