// tools/submit/yaml_reader.hpp - the part of YAML that settings need, read strictly, with
// positions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddp::submit {

/// One value of a document. Scalars are kept as they are written: nothing is converted behind the
/// reader's back, so "010", "yes" and "1:30" are text until somebody asks for a number.
struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };

  Kind kind = Kind::kNull;
  int line = 1;  ///< 1-based
  int column = 1;  ///< 1-based, in bytes
  std::string key;  ///< in a map: what the value is called
  int key_line = 1;  ///< where that stands
  int key_column = 1;
  std::string text;  ///< of a scalar
  bool quoted = false;  ///< the scalar stands in quotes or in a block, so it is text
  std::vector<YamlNode> children;  ///< of a sequence or a map, in order
};

/// Reads one document whose top is a map. Refused, with file:line:column: what is not YAML, not
/// UTF-8, longer than 1 MiB, deeper than 8 levels or more than one document; tabs in the
/// indentation, control characters, keys given twice or not plain text, anchors, aliases, merge
/// keys, tags.
/// @param file name for the messages
/// @throws UsageError
YamlNode read_yaml(const std::string& file, std::string_view text);

/// "settings.yaml:3:5: ", of a value and of its key
std::string position(const std::string& file, const YamlNode& node);
std::string key_position(const std::string& file, const YamlNode& node);

}  // namespace ddp::submit
