#include "bench/report/page/values.hpp"

#include <cmath>
#include <cstdio>

#include "bench/report/format.hpp"

namespace ddp::bench::page {
namespace {

std::string with_unit(const std::string& number, const char* unit) {
  return number == kNothing ? number : number + unit;
}

/// `share` in percent with that many decimals, without the sign.
std::string percent(const Json& share, int decimals) {
  const std::optional<double> number = number_at(share, "");
  if (!number || !(std::abs(*number) < 1e6)) {
    return with_unit(show(number ? Json(100 * *number) : Json()), " %");
  }
  return format_fixed(100 * *number, decimals) + " %";
}

}  // namespace

const Json& at(const Json& value, const char* pointer) {
  static const Json null;
  const Json::json_pointer path(pointer);
  return value.contains(path) ? value.at(path) : null;
}

std::optional<double> number_at(const Json& value, const char* pointer) {
  const Json& found = at(value, pointer);
  if (!found.is_number() || !std::isfinite(found.get<double>())) {
    return std::nullopt;
  }
  return found.get<double>();
}

std::string text_at(const Json& value, const char* pointer) {
  const Json& found = at(value, pointer);
  return found.is_string() ? found.get<std::string>() : "";
}

std::vector<Json> objects_at(const Json& value, const char* pointer) {
  std::vector<Json> objects;
  if (const Json& list = at(value, pointer); list.is_array()) {
    for (const Json& element : list) {
      if (element.is_object()) {
        objects.push_back(element);
      }
    }
  }
  return objects;
}

std::string show(const Json& value) {
  const std::optional<double> number = number_at(value, "");
  if (!number) {
    return kNothing;
  }
  const double size = std::abs(*number);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) {
    char buffer[40];
    std::snprintf(buffer, sizeof(buffer), "%.2e", *number);
    return buffer;
  }
  return size >= 1e3 ? show_count(value) : format_significant(number);
}

std::string show_count(const Json& value) {
  const std::optional<double> number = number_at(value, "");
  if (!number || std::abs(*number) >= 1e12) {
    return number ? show(value) : kNothing;
  }
  return *number < 0 ? "-" + format_count(-*number) : format_count(number);
}

std::string show_seconds(const Json& milliseconds) {
  const std::optional<double> number = number_at(milliseconds, "");
  return number ? show(*number / 1e3) : kNothing;
}

std::string show_factor(const Json& number) {
  return with_unit(show(number), "×");
}

std::string show_percent(const Json& share) {
  return percent(share, 0);
}

std::string show_tenths(const Json& share) {
  return percent(share, 1);
}

std::string show_excess(const Json& share) {
  return (number_at(share, "") > 0.0 ? "+" : "") + percent(share, 1);
}

std::string show_efficiency(const Json& value) {
  const std::optional<double> number = number_at(value, "");
  if (!number || !(std::abs(*number) < 1e6)) {
    return show(value);
  }
  return *number >= 0 && *number < 0.005 ? "<0.01" : format_fixed(number, 2);
}

std::string show_text(const Json& text) {
  const std::string shown = text_at(text, "");
  return shown.empty() || shown == "none" ? kNothing : shown;
}

std::string show_spread(const Json& distribution) {
  return show_interval({at(distribution, "/p10"), at(distribution, "/p90")});
}

std::string show_interval(const Json& ends) {
  const std::string low = show(at(ends, "/0"));
  const std::string high = show(at(ends, "/1"));
  return low == kNothing || high == kNothing ? kNothing : low + " – " + high;
}

std::string show_fact(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_boolean()) {
    return value.get<bool>() ? "yes" : "no";
  }
  if (value.is_number()) {
    const std::string digits = value.dump();
    return digits.size() <= 6 && !value.is_number_integer() ? digits
           : value.is_number_integer()                      ? show_count(value)
                                                            : show(value);
  }
  std::string text;
  for (const Json& element : value) {  // of a list or an object; null has none
    const std::string part = show_fact(element);
    text += (text.empty() || part.empty() ? "" : ", ") + part;
  }
  return text;
}

}  // namespace ddp::bench::page
