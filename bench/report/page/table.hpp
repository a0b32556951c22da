// bench/report/page/table.hpp - rows of JSON as a table for the page's template.
#pragma once

#include <kainjow/mustache.hpp>
#include <string>
#include <vector>

#include "bench/report/page/values.hpp"

namespace ddp::bench::page {

using Data = kainjow::mustache::data;

struct Column {
  std::string title;
  const char* pointer;  ///< to the value within a row; "": the row itself
  std::string (*format)(const Json& value) = show;
  const char* css_class = "number";
};

constexpr const char* kText = "text";
constexpr const char* kLong = "long";  ///< sentences that programs made: broken anywhere
constexpr const char* kCode = "long code";

/// @param by_workload a line with the "workload" of the rows below it, whenever it changes
/// @return what the template's table needs; false without rows
Data make_table(const std::string& caption, const std::vector<Column>& columns,
                const std::vector<Json>& rows, bool by_workload = false);

}  // namespace ddp::bench::page
