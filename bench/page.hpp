// bench/page.hpp - the page: one file with the report, its plots and the script that draws them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ddp::bench {

/// Needs neither network nor server: it opens from a file:// address.
/// @param document with the object "ddp_scaling"
/// @throws Error naming the file
void write_page(const std::string& file, const nlohmann::ordered_json& document);

}  // namespace ddp::bench
