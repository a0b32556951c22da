// bench/report/format.hpp - numbers as people read them, and tables of them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddp::bench {

/// Three significant digits without an exponent: "0.0412", "1.23", "1230"; "-" for nothing.
std::string format_significant(std::optional<double> value);
/// The shortest text that is this number: "0.25", "1e+05".
std::string format_shortest(double value);
std::string format_fixed(std::optional<double> value, int decimals);
/// "1,234,567".
std::string format_count(std::optional<double> value);
/// "84 bytes", "102 KB", "2.7 MB".
std::string format_bytes(double bytes);
/// "71 %".
std::string format_percent(double share);
/// "one", "two", ... "ten", then digits.
std::string format_small_number(int number);

struct Column {
  const char* title;
  bool left;  ///< aligned to the left
};

/// The line of titles, then one line a row, each with as many cells as there are columns.
std::vector<std::string> format_table(std::span<const Column> columns,
                                      const std::vector<std::vector<std::string>>& rows);

}  // namespace ddp::bench
