// bench/tables.hpp - the tables of text that are part of the program: stages.list and columns.list.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::bench {

// The files, made by CMake. In a row two blanks or more stand between cells.
extern const char* const kStagesList;
extern const char* const kColumnsList;

std::vector<std::vector<std::string>> table_rows(std::string_view text);
/// Parts of a cell, "a,b"; none for "-".
std::vector<std::string> cell_parts(const std::string& cell);

/// Number of a run on the screen: a row of columns.list, where its cells are explained.
struct Column {
  std::vector<std::string> keys;  ///< "step_ms.median"; a point leads into an object
  std::string title, shown, speeds, pieces;
};
const std::vector<Column>& columns();

}  // namespace ddp::bench
