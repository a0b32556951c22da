// bench/report/page/values.hpp - reads values of any JSON, and shows them as people read them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ddp::bench::page {

using Json = nlohmann::ordered_json;

/// What stands for a value that is not there.
inline constexpr const char* kNothing = "–";

/// What lies at a JSON pointer; null if nothing does. "" is the value itself.
const Json& at(const Json& value, const char* pointer);
/// Nothing for what is no number, or not a finite one.
std::optional<double> number_at(const Json& value, const char* pointer);
/// Empty for what is no text.
std::string text_at(const Json& value, const char* pointer);
/// The elements of a list that are objects; none for what is no list.
std::vector<Json> objects_at(const Json& value, const char* pointer);

// Each of these is kNothing for a value of another type.
std::string show(const Json& number);  ///< three significant digits: "0.0412", "1,230", "4.50e+09"
std::string show_count(const Json& number);  ///< whole: "1,234,567"
std::string show_seconds(const Json& milliseconds);
std::string show_factor(const Json& number);  ///< "1.23×"
std::string show_percent(const Json& share);  ///< "71 %"
std::string show_tenths(const Json& share);  ///< "7.1 %"
std::string show_excess(const Json& share);  ///< "+7.1 %"
std::string show_efficiency(const Json& number);  ///< "0.83", "<0.01"
std::string show_text(const Json& text);  ///< "none" is nothing
std::string show_spread(const Json& distribution);  ///< "0.4 – 0.75", from p10 to p90
std::string show_interval(const Json& ends);  ///< the same of a list of two
/// Whatever it is, on one line; empty for null. Numbers as exactly as six characters allow.
std::string show_fact(const Json& value);

}  // namespace ddp::bench::page
