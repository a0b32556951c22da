// bench/report/page/tables.hpp - the tables of contents.jsonc, and values as people read them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ddp::bench::page {

using Json = nlohmann::ordered_json;

std::string show_factor(double factor);  ///< "1.23×"
std::string show_percent(double share);  ///< "71 %"
std::string show_efficiency(double efficiency);  ///< "0.83", "<0.01"
/// Whatever it is, on one line; empty for null. Numbers as exactly as six characters allow.
std::string show_fact(const Json& value);

/// @param table of contents.jsonc
/// @param rows objects; what they lack is shown as "–"
/// @return what table.html needs; false without rows
Json make_table(const Json& table, const Json& rows);

}  // namespace ddp::bench::page
