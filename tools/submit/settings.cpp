// tools/submit/settings.cpp - the settings file: which keys it has and what their values may be.
#include "tools/submit/settings.hpp"

#include <fmt/ranges.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <system_error>

#include "common/base/command_line.hpp"
#include "common/base/parse.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr int kDeepest = 8;
constexpr std::int64_t kMostMegabytes = 1'000'000'000;
constexpr std::int64_t kHighestBid = 1'000'000'000;
constexpr std::int64_t kMostCpus = 65536;  // of one node
constexpr std::size_t kMostArguments = 10000;
constexpr const char* kTimeExample =
    "Slurm's MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, e.g. 6:00:00";

// Behind the text. yaml-cpp takes the end of a file for a closing quotation mark; then this comment
// is in a value.
constexpr std::string_view kEnd = "# The end of the settings, of 4f1d0c6e.";

/// The settings file, in front of whatever is wrong with it.
struct File {
  std::string name;

  [[noreturn]] void refuse_at(int line, int column, const std::string& what) const {
    refuse("{}:{}:{}: {}", quote_path(name), line, column, what);
  }
  [[noreturn]] void refuse_at(const YAML::Mark& mark, const std::string& what) const {
    refuse_at(std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1, what);
  }
};

/// What yaml-cpp would let through or report without a position.
void check_bytes(const File& file, std::string_view text) {
  if (text.size() > kMostBytes) {
    file.refuse_at(
        1, 1,
        fmt::format("got {} bytes, expected settings of at most {}", text.size(), kMostBytes));
  }
  int line = 0;
  for (const std::string& bytes : split(text, '\n')) {
    ++line;
    const std::size_t indentation = bytes.find_first_not_of(' ');
    std::size_t length = 0;
    for (std::size_t i = 0; i < bytes.size(); i += length) {
      const std::string_view rest = std::string_view(bytes).substr(i);
      const int column = static_cast<int>(i) + 1;
      length = utf8_length(rest);
      if (length == 0) {
        file.refuse_at(line, column,
                       "got the byte " + quote_bytes(rest.substr(0, 1)) + ", expected UTF-8");
      }
      if (rest.front() == '\t' && i == indentation) {
        file.refuse_at(line, column, "got a tab in the indentation, expected blanks");
      }
      if (is_control(rest.front()) && rest.front() != '\t' && rest != "\r") {
        file.refuse_at(
            line, column,
            "got the control character " + quote_bytes(rest.substr(0, 1)) + ", expected text");
      }
    }
  }
}

/// Refuses the YAML whose nodes would not show that it was there, or are too many.
class Guard : public YAML::EventHandler {
 public:
  explicit Guard(const File& file) : file_(file) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) {
      file_.refuse_at(mark, "got a second document, expected one");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { check(mark, "", anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    file_.refuse_at(mark, "got an alias (*name), expected the value itself");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (value.find(kEnd) != std::string::npos) {
      file_.refuse_at(mark, "got a quotation mark that is never closed, expected a second one");
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    check(mark, tag, anchor);
    if (++depth_ > kDeepest) {
      file_.refuse_at(mark, fmt::format("got more than {} levels, expected fewer", kDeepest));
    }
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    OnSequenceStart(mark, tag, anchor, style);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) {
      file_.refuse_at(mark, "got an anchor (&name), expected the value alone");
    }
    // yaml-cpp's own: "?" on what is plain, "!" on a scalar in quotes or in a block.
    if (!tag.empty() && tag != "?" && tag != "!") {
      file_.refuse_at(mark, "got the tag " + quote(tag) + ", expected the value alone");
    }
  }

  const File& file_;
  int documents_ = 0;
  int depth_ = 0;
};

YAML::Node read_yaml(const File& file, std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  check_bytes(file, text);
  const std::string guarded = fmt::format("{}\n{}\n", text, kEnd);
  YAML::Node root;
  try {
    std::istringstream stream(guarded);
    YAML::Parser parser(stream);
    Guard guard(file);
    while (parser.HandleNextDocument(guard)) {
    }
    root = YAML::Load(guarded);
  } catch (const YAML::Exception& error) {
    file.refuse_at(error.mark, "not YAML: " + error.msg);
  }
  if (!root.IsMap()) {
    file.refuse_at(root.Mark(),
                   fmt::format("got {}, expected settings, e.g. script_path: /path/to/program",
                               root.IsNull() ? "an empty file" : "no map"));
  }
  return root;
}

/// Words that YAML takes for something else than text, in one version of it or another.
bool is_boolean_or_null(const std::string& word) {
  constexpr std::string_view kWords[] = {"yes",   "no",   "on", "off", "true",
                                         "false", "null", "y",  "n"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view known) { return equals_in_any_case(word, known); });
}

bool looks_like_number(const std::string& text) {
  return text.find_first_of("0123456789") != std::string::npos &&
         text.find_first_not_of("0123456789+-._:eExXoOabcdefABCDEF") == std::string::npos &&
         text.find_first_of("+-.0123456789") == 0;
}

/// "nothing", "a map" or "a list"; a scalar as it is.
std::string describe_node(const YAML::Node& node) {
  return node.IsNull()     ? "nothing"
         : node.IsMap()    ? "a map"
         : node.IsScalar() ? quote(node.Scalar())
                           : "a list";
}

/// One value of the file: where it stands, what it is called, and what it may be read as.
class Value {
 public:
  Value(const File& file, const YAML::Node& node, const YAML::Mark& mark, std::string name)
      : file_(file), node_(node), mark_(mark), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& got, const std::string& expected) const {
    file_.refuse_at(mark_, fmt::format("{}: got {}, expected {}", name_, got, expected));
  }

  /// Repeats a refusal of another part with the place in front.
  template <typename Check>
  auto at_place(const Check& check) const {
    try {
      return check();
    } catch (const UsageError& error) {
      file_.refuse_at(mark_, error.what());
    }
  }

  const std::string& scalar(const std::string& expected) const {
    if (!node_.IsScalar()) {
      refuse(describe_node(node_), expected);
    }
    return node_.Scalar();
  }

  std::int64_t integer(std::int64_t minimum, std::int64_t maximum) const {
    const std::string range = fmt::format("an integer from {} to {}", minimum, maximum);
    const std::string& text = scalar(range);
    if (is_quoted()) {
      refuse("the text " + quote(text), range + ", without quotation marks");
    }
    if (text.size() > 1 && text.front() == '0' && is_digits(text)) {
      refuse(quote(text), range + ", without a leading 0 (YAML 1.1 reads it as octal)");
    }
    try {
      return parse_integer<std::int64_t>(name_, text, minimum, maximum);
    } catch (const UsageError&) {
      refuse(quote(text), range + ", in plain digits");
    }
  }

  std::string text(const std::string& expected) const {
    const std::string& text = scalar(expected);
    if (!is_quoted() && is_boolean_or_null(text)) {
      refuse(quote(text), expected +
                              " (YAML 1.1 reads this word as a truth value: put it in "
                              "quotation marks)");
    }
    if (!is_quoted() && looks_like_number(text)) {
      refuse(quote(text), expected + " (this is a number to YAML: put it in quotation marks)");
    }
    if (text.empty()) {
      refuse("an empty text", expected);
    }
    return text;
  }

  std::string path(const std::string& folder, const std::string& expected) const {
    const std::string given = text(expected);
    at_place([&] { check_path(name_, given); });
    if (given.front() == '~') {
      refuse(quote(given), expected + " (no shell expands ~ here)");
    }
    std::string absolute = absolute_path(folder, given);
    at_place([&] { check_path(name_, absolute); });
    return absolute;
  }

  std::vector<Value> list(const std::string& expected) const {
    if (!node_.IsSequence()) {
      refuse(describe_node(node_), expected);
    }
    if (node_.size() > kMostArguments) {
      refuse(fmt::format("{} arguments", node_.size()), fmt::format("at most {}", kMostArguments));
    }
    std::vector<Value> values;
    for (const YAML::Node& item : node_) {
      values.emplace_back(file_, item, item.Mark(), fmt::format("{}[{}]", name_, values.size()));
    }
    return values;
  }

  const std::string& name() const { return name_; }

 private:
  bool is_quoted() const { return node_.Tag() == "!"; }

  const File& file_;
  YAML::Node node_;
  YAML::Mark mark_;
  std::string name_;
};

/// Full names, "local.condor.bid", and who takes the value.
using Keys = std::map<std::string, std::function<void(const Value&)>>;

[[noreturn]] void refuse_key(const File& file, const YAML::Mark& mark, const std::string& prefix,
                             const std::string& key, const Keys& keys) {
  std::set<std::string> siblings;
  std::string elsewhere;
  for (const auto& [name, take] : keys) {
    if (name.starts_with(prefix)) {
      siblings.insert(split(name.substr(prefix.size()), '.')[0]);
    }
    if (("." + name).ends_with("." + key)) {
      elsewhere = name.find('.') == std::string::npos ? name + " at the top" : name;
    } else if (name.find("." + key + ".") != std::string::npos) {
      elsewhere = name.substr(0, name.find("." + key + ".") + 1 + key.size());
    }
  }
  const std::vector<std::string> known(siblings.begin(), siblings.end());
  const std::string guess = nearest(key, known);
  file.refuse_at(mark, "unknown key " + quote(prefix + key) +
                           (!elsewhere.empty() ? ", expected " + elsewhere
                            : guess.empty()    ? ", expected " + join(known)
                                               : ", did you mean " + prefix + guess + "?"));
}

/// @param prefix "local.condor." in front of the keys' names
void read_map(const File& file, const YAML::Node& map, const std::string& prefix,
              const Keys& keys) {
  std::map<std::string, int> lines;
  for (const auto& entry : map) {
    const YAML::Node key = entry.first;
    const YAML::Mark mark = key.Mark();
    if (!key.IsScalar()) {
      file.refuse_at(mark,
                     fmt::format("got {}, expected a name",
                                 key.IsNull() ? "an empty key" : "a key that is a list or a map"));
    }
    if (key.Scalar() == "<<" && key.Tag() != "!") {
      file.refuse_at(mark, "got a merge key (<<), expected every key to be written out");
    }
    const auto [first, is_new] = lines.emplace(key.Scalar(), mark.line + 1);
    if (!is_new) {
      file.refuse_at(mark, fmt::format("{} was given before, in line {}, expected every key once",
                                       quote(key.Scalar()), first->second));
    }
  }
  for (const auto& entry : map) {
    const YAML::Node key = entry.first;
    const YAML::Node value = entry.second;
    const std::string name = prefix + key.Scalar();
    // A value that is not there has the place of its key.
    const YAML::Mark mark = value.IsNull() ? key.Mark() : value.Mark();
    const auto below = keys.lower_bound(name + ".");
    if (const auto known = keys.find(name); known != keys.end()) {
      known->second(Value(file, value, mark, name));
    } else if (below == keys.end() || !below->first.starts_with(name + ".")) {
      refuse_key(file, key.Mark(), prefix, key.Scalar(), keys);
    } else if (!value.IsMap()) {
      Value(file, value, mark, name).refuse(describe_node(value), "keys and values below it");
    } else {
      read_map(file, value, name + ".", keys);
    }
  }
}

/// Whether the text matches, unless it is longer than what std::regex can take.
bool matches(const std::string& text, std::smatch& parts, const std::regex& pattern) {
  return text.size() < 100 && std::regex_match(text, parts, pattern);
}

}  // namespace

Settings parse_settings(const std::string& file_name, std::string_view text,
                        const std::string& folder) {
  const File file = {file_name};
  const YAML::Node root = read_yaml(file, text);
  Settings settings;
  Resources& resources = settings.resources;
  const auto integer = [](auto& target, std::int64_t minimum, std::int64_t maximum) {
    return [&target, minimum, maximum](const Value& value) {
      target = value.integer(minimum, maximum);
    };
  };
  const auto name = [](std::string& target, const char* expected, std::string_view others) {
    return [&target, expected, others](const Value& value) {
      target = value.text(expected);
      value.at_place([&] { check_name(value.name(), target, others); });
    };
  };
  const auto path = [&folder](std::string& target, const char* expected) {
    return [&, expected](const Value& value) { target = value.path(folder, expected); };
  };
  const Keys keys = {
      {"script_path", path(settings.script_path, "the path of a program")},
      {"interpreter", path(settings.interpreter, "the path of what runs the program")},
      {"out_dir", path(settings.out_dir, "the path of a folder")},
      {"arguments",
       [&](const Value& value) {
         for (const Value& item : value.list("a list, e.g. [50, 10, --lr, 0.1]")) {
           // As it is written, so numbers and words need no quotation marks.
           settings.arguments.push_back(item.scalar("a word or a number"));
           item.at_place([&] { check_argument(item.name(), settings.arguments.back()); });
         }
       }},
      {"nodes", integer(resources.nodes, 1, kMostNodes)},
      {"time",
       [&](const Value& value) {
         const std::string& time = value.scalar(kTimeExample);
         resources.time_s = value.at_place([&] { return parse_time("time", time); });
       }},
      {"account", name(resources.account, "an account's name", kAccountOthers)},
      {"partition", name(resources.partition, "partitions' names", kPartitionOthers)},
      {"constraint", name(resources.constraint, "features", kConstraintOthers)},
      {"local.device",
       [&](const Value& value) {
         const Choices devices = {"auto", "cpu", "cuda"};
         settings.device = value.text(join(devices));
         value.at_place([&] { check_choice(value.name(), settings.device, devices); });
       }},
      {"local.condor.bid", integer(resources.bid, 0, kHighestBid)},
      {"local.condor.num_cpus", integer(resources.cpus, 1, kMostCpus)},
      {"local.condor.memory_cpus", integer(resources.memory_mb, 1, kMostMegabytes)},
      {"local.condor.num_gpus", integer(resources.gpus, 0, kMostGpus)},
      {"local.condor.memory_gpus", integer(resources.gpu_memory_mb, 1, kMostMegabytes)},
      {"local.condor.transfer_files",
       [&](const Value& value) {
         for (const Value& item : value.list("a list of files")) {
           resources.transfer_files.push_back(item.path(folder, "a file"));
         }
       }},
  };
  read_map(file, root, "", keys);
  if (settings.script_path.empty()) {
    file.refuse_at(root.Mark(), "script_path is missing, expected the path of a program");
  }
  if (settings.out_dir.empty()) {
    file.refuse_at(root.Mark(), "out_dir is missing, expected the path of a folder");
  }
  return settings;
}

Settings read_settings(const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(file, error)) {
    refuse("{} is a folder, expected a settings file", quote_path(file));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    refuse("cannot read {}: {}, expected a settings file", quote_path(file),
           std::generic_category().message(errno));
  }
  std::string text(kMostBytes + 1, '\0');  // what is longer is refused anyway
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  const fs::path folder = fs::absolute(file, error).lexically_normal().parent_path();
  if (error) {
    refuse("cannot find the folder of {}: {}", quote_path(file), error.message());
  }
  return parse_settings(file, text, folder.string());
}

std::int64_t parse_time(const std::string& name, const std::string& text) {
  // The first number may be large: Slurm takes 90:00 for an hour and a half.
  static const std::regex kTime(
      "(?:(\\d{1,4})-)?(\\d{1,4})(?::(\\d\\d))?(?::(\\d\\d))?|(\\d{5,6})");
  const auto refuse_time = [&](const std::string& hint) {
    refuse_value(name, quote(text), kTimeExample + hint);
  };
  std::smatch parts;
  if (!matches(text, parts, kTime)) {
    refuse_time("");
  }
  const auto number = [&parts](std::size_t i) {
    return parts[i].matched ? std::int64_t{std::stoi(parts[i].str())} : 0;
  };
  const bool has_days = parts[1].matched;
  if (number(3) > 59 || number(4) > 59 || (has_days && number(2) > 23)) {
    refuse_time(" (at most 59 minutes and seconds, and 23 hours after days)");
  }
  // What stands first depends on how many there are.
  const std::int64_t first_s = has_days || parts[4].matched ? 3600 : 60;
  const std::int64_t seconds =
      number(1) * 86400 + (number(2) + number(5)) * first_s + number(3) * first_s / 60 + number(4);
  if (seconds == 0) {
    refuse_time(" (not zero)");
  }
  return seconds;
}

void check_name(const std::string& name, const std::string& text, std::string_view others) {
  constexpr std::size_t kLongest = 256;
  const bool starts_well = !text.empty() && (is_plain(text.substr(0, 1), "_[(") || text[0] == '*');
  if (text.size() > kLongest || !starts_well || !is_plain(text, others)) {
    refuse_value(name, quote_bytes(text),
                 fmt::format("a name of letters, digits and {}",
                             fmt::join(others.begin(), others.end(), " ")));
  }
}

}  // namespace ddp::submit
