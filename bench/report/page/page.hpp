// bench/report/page/page.hpp - the report as one page with plots.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/report/record.hpp"

namespace ddp::bench {

/// A page that needs nothing else, neither files nor a network. Sentences and tables are HTML; its
/// script draws the plots from the document, which lies in the page. What the report does not have
/// is left out.
/// @param report the document's ddp_scaling @return UTF-8
std::string render_page(const nlohmann::ordered_json& document, const Report& report);

/// Writes the whole file or leaves the one before. @throws Error (1) naming the file
void write_page(const std::string& file, const nlohmann::ordered_json& document,
                const Report& report);

}  // namespace ddp::bench
