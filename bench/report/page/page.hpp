// bench/report/page/page.hpp - the report as one page with plots, made from the JSON document
// alone.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ddp::bench {

/// A page that needs nothing else, neither files nor a network. Sentences and tables are HTML; its
/// script draws the plots from the document, which lies in the page. What the document does not
/// hold is left out; nothing in a document makes this fail.
/// @return UTF-8
std::string render_page(const nlohmann::ordered_json& document);

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_page(const std::string& file, const nlohmann::ordered_json& document);

}  // namespace ddp::bench
