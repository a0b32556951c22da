// bench/html/markup.hpp - tables, figures and sections of the page.
#pragma once

#include <string>
#include <vector>

#include "bench/html/text.hpp"

namespace ddp::bench::html {

struct Cell {
  std::string html;  ///< escaped already
  Number value;  ///< what is shown rounded
  std::string css_class;
};

Cell text_cell(const std::string& text);
/// Sentences that programs have made: broken anywhere.
Cell long_cell(const std::string& text);
/// The same in a fixed-width face, for names and commands.
Cell code_cell(const std::string& text);
/// @param shown `value`, rounded
Cell number_cell(Number value, const std::string& shown);

struct Column {
  std::string title;
  bool is_number = true;
};

class Table {
 public:
  Table(std::string caption, std::vector<Column> columns);
  /// The rows that follow belong together.
  void begin_group(const std::string& title);
  void add(std::vector<Cell> cells);
  bool is_empty() const { return rows_ == 0; }
  /// Wide tables scroll in a box of their own.
  std::string html() const;
  /// The same behind a line that opens it.
  std::string details() const;

 private:
  std::string caption_;
  std::vector<Column> columns_;
  std::string body_;
  std::size_t rows_ = 0;
  bool in_group_ = false;
};

/// A drawing under its title; nothing for no drawing.
std::string figure(const std::string& title, const std::string& svg, const std::string& note = "");
/// Figures beside each other as far as there is room; nothing for none.
std::string figures(const std::vector<std::string>& figures);
/// @param html escaped already
std::string paragraph(const std::string& html);

struct Section {
  std::string id;
  std::string title;
  std::string html;  ///< empty: the document has nothing for it
};

}  // namespace ddp::bench::html
