#include "tools/submit/yaml_reader.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/base/parse.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr std::size_t kDeepest = 8;

// Behind the text. yaml-cpp takes the end of a file for a closing quotation mark; then this comment
// is in a value.
constexpr std::string_view kEnd = "# The end of the settings, of 4f1d0c6e.";

std::string place(const std::string& file, int line, int column) {
  return quote_path(file) + ":" + std::to_string(line) + ":" + std::to_string(column) + ": ";
}

[[noreturn]] void refuse(const std::string& file, int line, int column, const std::string& what) {
  throw UsageError(place(file, line, column) + what);
}

/// What yaml-cpp would let through or report without a position.
void check_bytes(const std::string& file, std::string_view text) {
  if (text.size() > kMostBytes) {
    refuse(file, 1, 1,
           "got " + std::to_string(text.size()) + " bytes, expected settings of at most " +
               std::to_string(kMostBytes));
  }
  int line = 1;
  std::size_t line_start = 0;
  bool indentation = true;
  for (std::size_t i = 0; i < text.size();) {
    const int column = static_cast<int>(i - line_start) + 1;
    const std::size_t length = utf8_length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0) {
      refuse(file, line, column,
             "got the byte " + quote_bytes(text.substr(i, 1)) + ", expected UTF-8");
    }
    if (byte == '\n') {
      ++line;
      line_start = i + 1;
      indentation = true;
    } else if (byte == '\t' && indentation) {
      refuse(file, line, column, "got a tab in the indentation, expected blanks");
    } else if (byte == '\r' ? text.substr(i, 2) != "\r\n"
                            : (byte < 0x20 && byte != '\t') || byte == 0x7f) {
      refuse(file, line, column,
             "got the control character " + quote_bytes(text.substr(i, 1)) + ", expected text");
    } else if (byte != ' ') {
      indentation = false;
    }
    i += length;
  }
}

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}

  YamlNode take_root() { return std::move(root_); }
  bool has_root() const { return has_root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (has_root_) {
      refuse(mark, "got a second document, expected one");
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check(mark, "", anchor);
    add(make(mark, YamlNode::Kind::kNull));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    refuse(mark, "got an alias (*name), expected the value itself");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (value.find(kEnd) != std::string::npos) {
      refuse(mark, "got a quotation mark that is never closed, expected a second one");
    }
    YamlNode node = make(mark, YamlNode::Kind::kScalar);
    node.text = value;
    node.quoted = tag == "!";  // how yaml-cpp marks a scalar that is not plain
    if (!node.quoted && (value.empty() || value == "~")) {
      node.kind = YamlNode::Kind::kNull;
    }
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    check(mark, tag, anchor);
    open(make(mark, YamlNode::Kind::kSequence));
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    check(mark, tag, anchor);
    open(make(mark, YamlNode::Kind::kMap));
  }
  void OnMapEnd() override { close(); }

 private:
  /// An open sequence or map. In a map, keys and values take turns.
  struct Level {
    YamlNode node;
    bool has_key = false;
    YamlNode key;
  };

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& what) const {
    ddp::submit::refuse(file_, mark.line + 1, mark.column + 1, what);
  }
  [[noreturn]] void refuse(const YamlNode& node, const std::string& what) const {
    ddp::submit::refuse(file_, node.line, node.column, what);
  }

  static YamlNode make(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) {
      refuse(mark, "got an anchor (&name), expected the value alone");
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      refuse(mark, "got the tag " + quote(tag) + ", expected the value alone");
    }
  }

  void open(YamlNode node) {
    if (levels_.size() == kDeepest) {
      refuse(node, "got more than " + std::to_string(kDeepest) + " levels, expected fewer");
    }
    if (!levels_.empty() && levels_.back().node.kind == YamlNode::Kind::kMap &&
        !levels_.back().has_key) {
      refuse(node, "got a key that is a list or a map, expected a name");
    }
    levels_.push_back({std::move(node), false, {}});
  }

  void close() {
    YamlNode node = std::move(levels_.back().node);
    levels_.pop_back();
    add(std::move(node));
  }

  void add(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      has_root_ = true;
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.children.push_back(std::move(node));
    } else if (!level.has_key) {
      set_key(level, std::move(node));
    } else {
      // A value that is not there has the place of its key.
      if (node.kind == YamlNode::Kind::kNull && node.text.empty()) {
        node.line = level.key.line;
        node.column = level.key.column;
      }
      node.key = level.key.text;
      node.key_line = level.key.line;
      node.key_column = level.key.column;
      level.has_key = false;
      level.node.children.push_back(std::move(node));
    }
  }

  void set_key(Level& level, YamlNode key) const {
    if (key.kind != YamlNode::Kind::kScalar) {
      refuse(key, "got an empty key, expected a name");
    }
    if (key.text == "<<" && !key.quoted) {
      refuse(key, "got a merge key (<<), expected every key to be written out");
    }
    for (const YamlNode& sibling : level.node.children) {
      if (sibling.key == key.text) {
        refuse(key, quote(key.text) + " was given before, in line " +
                        std::to_string(sibling.key_line) + ", expected every key once");
      }
    }
    level.key = std::move(key);
    level.has_key = true;
  }

  const std::string& file_;
  std::vector<Level> levels_;
  YamlNode root_;
  bool has_root_ = false;
};

}  // namespace

YamlNode read_yaml(const std::string& file, std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  check_bytes(file, text);
  TreeBuilder builder(file);
  try {
    std::istringstream stream{std::string(text) + "\n" + std::string(kEnd) + "\n"};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    refuse(file, std::max(error.mark.line, 0) + 1, std::max(error.mark.column, 0) + 1,
           "not YAML: " + error.msg);
  }
  YamlNode root = builder.take_root();
  if (!builder.has_root() || root.kind != YamlNode::Kind::kMap) {
    refuse(file, root.line, root.column,
           "got " + std::string(builder.has_root() ? "no map" : "an empty file") +
               ", expected settings, e.g. script_path: /path/to/program");
  }
  return root;
}

std::string position(const std::string& file, const YamlNode& node) {
  return place(file, node.line, node.column);
}

std::string key_position(const std::string& file, const YamlNode& node) {
  return place(file, node.key_line, node.key_column);
}

}  // namespace ddp::submit
