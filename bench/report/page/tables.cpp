#include "bench/report/page/tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/report/format.hpp"

namespace ddp::bench::page {
namespace {

constexpr const char* kNothing = "–";

std::string show_count(double number);

/// Three significant digits: "0.0412", "1,230", "4.50e+09".
std::string show(double number) {
  const double size = std::abs(number);
  if (!std::isfinite(number)) {
    return kNothing;
  }
  if (size >= 1e7 || (size > 0 && size < 1e-4)) {
    return fmt::format("{:.2e}", number);
  }
  return size >= 1e3 ? show_count(number) : format_significant(number);
}

/// "1,234,567".
std::string show_count(double number) {
  if (std::abs(number) >= 1e12) {
    return show(number);
  }
  return (number < 0 ? "-" : "") + format_count(std::abs(number));
}

std::string show_seconds(double milliseconds) {
  return show(milliseconds / 1e3);
}

/// In percent, with that many decimals.
std::string percent(double share, int decimals) {
  return (std::abs(share) < 1e6 ? format_fixed(100 * share, decimals) : show(100 * share)) + " %";
}

/// "7.1 %".
std::string show_tenths(double share) {
  return percent(share, 1);
}

/// "+7.1 %".
std::string show_excess(double share) {
  return (share > 0 ? "+" : "") + percent(share, 1);
}

bool is_finite(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

template <std::string (*show_number)(double)>
std::string if_number(const Json& value) {
  return is_finite(value) ? show_number(value.get<double>()) : kNothing;
}

std::string show_speed(const Json& step_ms) {
  return is_finite(step_ms) ? if_number<show>(step_ms) : "no speed";
}

/// "0.4 – 0.75".
std::string show_interval(const Json& ends) {
  return ends.is_array() && is_finite(ends[0]) && is_finite(ends[1])
             ? if_number<show>(ends[0]) + " – " + if_number<show>(ends[1])
             : kNothing;
}

std::string show_spread(const Json& distribution) {
  return show_interval({distribution["p10"], distribution["p90"]});
}

/// "none" is nothing.
std::string show_text(const Json& text) {
  return text.is_null() || text == "" || text == "none" ? kNothing : text.get<std::string>();
}

std::string show_parity(const Json& ok) {
  return ok == true ? "ok" : "failed";
}

std::string show_error(const Json& error) {
  return error.is_null() ? "parity failed" : error.get<std::string>();
}

/// "rank 1, 61 % of steps, +4.2 %".
std::string show_slowest_rank(const Json& slowest) {
  return slowest.is_null()
             ? kNothing
             : fmt::format("rank {}, {} of steps, {}", if_number<show_count>(slowest["rank"]),
                           if_number<show_percent>(slowest["share_of_steps"]),
                           if_number<show_excess>(slowest["median_excess"]));
}

/// "102 KiB, 1.00 MiB".
std::string show_sizes(const Json& sizes) {
  std::string text;
  for (const Json& bytes : sizes) {
    const double size = is_finite(bytes) ? bytes.get<double>() : 0;
    text += text.empty() ? "" : ", ";
    text += size >= 1 << 20   ? show(size / (1 << 20)) + " MiB"
            : size >= 1 << 10 ? show(size / (1 << 10)) + " KiB"
                              : show(size) + " B";
  }
  return text.empty() ? kNothing : text;
}

/// How a column shows its values; "long": broken anywhere, as what programs wrote.
struct Kind {
  std::string (*show)(const Json& value);
  const char* css_class = "number";
};

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"number", {if_number<show>}},
      {"count", {if_number<show_count>}},
      {"seconds", {if_number<show_seconds>}},
      {"factor", {if_number<show_factor>}},
      {"percent", {if_number<show_percent>}},
      {"tenths", {if_number<show_tenths>}},
      {"excess", {if_number<show_excess>}},
      {"efficiency", {if_number<show_efficiency>}},
      {"speed", {show_speed}},
      {"interval", {show_interval}},
      {"spread", {show_spread}},
      {"text", {show_text, "text"}},
      {"fact", {show_fact, "text"}},
      {"parity", {show_parity, "text"}},
      {"slowest_rank", {show_slowest_rank, "text"}},
      {"sizes", {show_sizes, "text"}},
      {"program", {show_text, "program"}},
      {"long", {show_text, "long"}},
      {"error", {show_error, "long"}},
      {"code", {show_text, "long code"}},
  };
  return all;
}

const Json& value_at(const Json& row, const Json& column) {
  static const Json null;
  const Json::json_pointer path(column[1].get<std::string>());
  return row.contains(path) ? row.at(path) : null;
}

const Kind& kind_of(const Json& column) {
  return kinds().at(column.size() > 2 ? column[2].get<std::string>() : "number");
}

bool is_left_out(const Json& column, const Json& rows) {
  const Json& first = value_at(rows[0], column);
  return column.size() > 3 && std::ranges::count(column[3], first) > 0 &&
         std::ranges::all_of(rows, [&](const Json& row) { return value_at(row, column) == first; });
}

}  // namespace

std::string show_factor(double factor) {
  return show(factor) + "×";
}

std::string show_percent(double share) {
  return percent(share, 0);
}

std::string show_efficiency(double efficiency) {
  if (std::abs(efficiency) >= 1e6) {
    return show(efficiency);
  }
  return efficiency >= 0 && efficiency < 0.005 ? "<0.01" : format_fixed(efficiency, 2);
}

std::string show_fact(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "yes" : "no";
  }
  if (value.is_number()) {
    return !is_finite(value)           ? ""
           : value.is_number_integer() ? if_number<show_count>(value)
           : value.dump().size() <= 6  ? value.dump()
                                       : if_number<show>(value);
  }
  std::string text;
  for (const Json& element : value) {  // of a list or an object; null has none
    const std::string part = show_fact(element);
    text += (text.empty() || part.empty() ? "" : ", ") + part;
  }
  return text;
}

Json make_table(const Json& table, const Json& rows) {
  if (rows.empty()) {
    return false;
  }
  Json columns = Json::array();
  for (const Json& column : table["columns"]) {
    if (!is_left_out(column, rows)) {
      columns.push_back(column);
    }
  }
  Json heads = Json::array();
  for (const Json& column : columns) {
    heads.push_back({{"title", column[0]}, {"css_class", kind_of(column).css_class}});
  }
  const bool by_workload = table.contains("by_workload");
  Json bodies = Json::array();
  for (const Json& row : rows) {
    const Json& workload = by_workload ? row["workload"] : Json(false);
    if (bodies.empty() || bodies.back()["workload"] != workload) {
      bodies.push_back({{"workload", workload}, {"rows", Json::array()}});
    }
    Json cells = Json::array();
    for (const Json& column : columns) {
      const Json& value = value_at(row, column);
      const Kind& kind = kind_of(column);
      // The number unrounded. All keys are set, or the template would find the outer table's.
      cells.push_back({{"css_class", kind.css_class},
                       {"text", kind.show(value)},
                       {"value", is_finite(value) ? value.dump() : ""},
                       {"hue", kind.css_class == std::string("program") ? row["hue"] : Json("")}});
    }
    bodies.back()["rows"].push_back({{"cells", cells}});
  }
  return {{"caption", table["caption"]},
          {"columns", heads},
          {"width", std::to_string(columns.size())},
          {"bodies", bodies}};
}

}  // namespace ddp::bench::page
