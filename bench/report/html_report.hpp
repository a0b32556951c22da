// bench/report/html_report.hpp - the report as one page with plots, made from the JSON document
// alone.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ddp::bench {

/// A page that needs nothing else, neither files nor a network, and is readable without scripts.
/// The document lies in it. What the document does not hold is left out of the page; nothing in a
/// document makes this fail.
/// @return UTF-8
std::string make_html_report(const nlohmann::ordered_json& document);

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_html_file(const std::string& file, const nlohmann::ordered_json& document);

}  // namespace ddp::bench
