// common/base/json_text.hpp - JSON as text, whatever bytes its strings have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ddp {

/// Replaces bytes that are not UTF-8, which names of files and hosts may have.
/// @param indent spaces of each level; -1: all on one line
template <typename Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace ddp
