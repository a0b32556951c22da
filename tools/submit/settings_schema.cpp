// tools/submit/settings_schema.cpp - which keys a settings file has and what their values may be.
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>

#include "common/base/parse.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/settings.hpp"
#include "tools/submit/text.hpp"
#include "tools/submit/yaml_reader.hpp"

namespace ddp::submit {
namespace {

constexpr std::int64_t kMostMegabytes = 1'000'000'000;
constexpr std::int64_t kHighestBid = 1'000'000'000;
constexpr std::int64_t kMostCpus = 65536;  // of one node
constexpr std::size_t kMostArguments = 10000;

using Kind = YamlNode::Kind;

std::string kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return "a value";
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      break;
  }
  return "a map";
}

/// Words that YAML takes for something else than text, in one version of it or another.
bool is_boolean_or_null(std::string word) {
  static constexpr std::array<std::string_view, 9> kWords = {"yes",   "no",   "on", "off", "true",
                                                             "false", "null", "y",  "n"};
  std::transform(word.begin(), word.end(), word.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

bool looks_like_number(const std::string& text) {
  return text.find_first_of("0123456789") != std::string::npos &&
         text.find_first_not_of("0123456789+-._:eExXoOabcdefABCDEF") == std::string::npos &&
         text.find_first_of("+-.0123456789") == 0;
}

/// Reads one map of the file. Every key must be asked for, so what is left over is unknown.
class Reader {
 public:
  Reader(const std::string& file, std::string folder) : file_(file), folder_(std::move(folder)) {}

  using Store = std::function<void(const YamlNode& node, const std::string& name)>;
  using Keys = std::map<std::string, Store>;

  /// @param prefix "local.condor." in front of the keys' names
  void read_map(const YamlNode& map, const std::string& prefix, const Keys& keys) const {
    for (const YamlNode& node : map.children) {
      const auto known = keys.find(node.key);
      if (known == keys.end()) {
        refuse_key(node, prefix, keys);
      }
      known->second(node, prefix + node.key);
    }
  }

  void need(const YamlNode& map, const std::string& key, const std::string& expected) const {
    const auto is_it = [&key](const YamlNode& node) { return node.key == key; };
    if (std::none_of(map.children.begin(), map.children.end(), is_it)) {
      throw UsageError(position(file_, map) + key + " is missing, expected " + expected);
    }
  }

  [[noreturn]] void refuse(const YamlNode& node, const std::string& name, const std::string& got,
                           const std::string& expected) const {
    throw UsageError(position(file_, node) + name + ": got " + got + ", expected " + expected);
  }

  /// Repeats a refusal of another part with the place in front.
  template <typename Check>
  void at(const YamlNode& node, const Check& check) const {
    try {
      check();
    } catch (const UsageError& error) {
      throw UsageError(position(file_, node) + error.what());
    }
  }

  void expect(const YamlNode& node, const std::string& name, Kind kind,
              const std::string& expected) const {
    if (node.kind != kind) {
      refuse(node, name, node.kind == Kind::kScalar ? quote(node.text) : kind_name(node.kind),
             expected);
    }
  }

  std::int64_t integer(const YamlNode& node, const std::string& name, std::int64_t minimum,
                       std::int64_t maximum) const {
    const std::string range =
        "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum);
    expect(node, name, Kind::kScalar, range);
    const std::string& text = node.text;
    if (node.quoted) {
      refuse(node, name, "the text " + quote(text), range + ", without quotation marks");
    }
    if (text.size() > 1 && text.front() == '0' &&
        text.find_first_not_of("0123456789") == std::string::npos) {
      refuse(node, name, quote(text), range + ", without a leading 0 (YAML 1.1 reads it as octal)");
    }
    std::int64_t value = 0;
    try {
      value = parse_integer<std::int64_t>(name, text, minimum, maximum);
    } catch (const UsageError&) {
      refuse(node, name, quote(text), range + ", in plain digits");
    }
    return value;
  }

  std::string string(const YamlNode& node, const std::string& name,
                     const std::string& expected) const {
    expect(node, name, Kind::kScalar, expected);
    if (!node.quoted && is_boolean_or_null(node.text)) {
      refuse(node, name, quote(node.text),
             expected + " (YAML 1.1 reads this word as a truth value: put it in quotation marks)");
    }
    if (!node.quoted && looks_like_number(node.text)) {
      refuse(node, name, quote(node.text),
             expected + " (this is a number to YAML: put it in quotation marks)");
    }
    if (node.text.empty()) {
      refuse(node, name, "an empty text", expected);
    }
    return node.text;
  }

  std::string path(const YamlNode& node, const std::string& name,
                   const std::string& expected) const {
    const std::string text = string(node, name, expected);
    at(node, [&] { check_path(name, text); });
    if (text.front() == '~') {
      refuse(node, name, quote(text), expected + " (no shell expands ~ here)");
    }
    std::string absolute = (std::filesystem::path(folder_) / text).lexically_normal().string();
    if (absolute.size() > 1 && absolute.back() == '/') {
      absolute.pop_back();
    }
    at(node, [&] { check_path(name, absolute); });
    return absolute;
  }

  std::vector<std::string> arguments(const YamlNode& node, const std::string& name) const {
    expect(node, name, Kind::kSequence, "a list, e.g. [50, 10, --lr, 0.1]");
    if (node.children.size() > kMostArguments) {
      refuse(node, name, std::to_string(node.children.size()) + " arguments",
             "at most " + std::to_string(kMostArguments));
    }
    std::vector<std::string> values;
    for (const YamlNode& item : node.children) {
      const std::string item_name = name + "[" + std::to_string(values.size()) + "]";
      // As it is written, so numbers and words need no quotation marks.
      expect(item, item_name, Kind::kScalar, "a word or a number");
      at(item, [&] { check_argument(item_name, item.text); });
      values.push_back(item.text);
    }
    return values;
  }

  std::vector<std::string> paths(const YamlNode& node, const std::string& name) const {
    expect(node, name, Kind::kSequence, "a list of files");
    std::vector<std::string> values;
    for (const YamlNode& item : node.children) {
      values.push_back(path(item, name + "[" + std::to_string(values.size()) + "]", "a file"));
    }
    return values;
  }

 private:
  [[noreturn]] void refuse_key(const YamlNode& node, const std::string& prefix,
                               const Keys& keys) const {
    static const std::map<std::string, std::string> kHomes = {
        {"device", "local.device"},
        {"bid", "local.condor.bid"},
        {"num_cpus", "local.condor.num_cpus"},
        {"memory_cpus", "local.condor.memory_cpus"},
        {"num_gpus", "local.condor.num_gpus"},
        {"memory_gpus", "local.condor.memory_gpus"},
        {"transfer_files", "local.condor.transfer_files"},
        {"condor", "local.condor"},
        {"script_path", "script_path at the top"},
        {"out_dir", "out_dir at the top"},
        {"arguments", "arguments at the top"},
        {"nodes", "nodes at the top"},
        {"time", "time at the top"},
        {"account", "account at the top"},
        {"partition", "partition at the top"},
        {"constraint", "constraint at the top"},
    };
    std::vector<std::string> names;
    for (const auto& [name, store] : keys) {
      names.push_back(name);
    }
    const std::string start = key_position(file_, node) + "unknown key " + quote(prefix + node.key);
    if (const auto home = kHomes.find(node.key); home != kHomes.end()) {
      throw UsageError(start + ", expected " + home->second);
    }
    const std::string guess = nearest(node.key, names);
    throw UsageError(start + (guess.empty() ? ", expected " + any_of(names)
                                            : ", did you mean " + prefix + guess + "?"));
  }

  const std::string& file_;
  std::string folder_;
};

}  // namespace

Settings parse_settings(const std::string& file, std::string_view text, const std::string& folder) {
  const YamlNode root = read_yaml(file, text);
  const Reader reader(file, folder);
  Settings settings;
  Resources& resources = settings.resources;

  const auto integer = [&reader](auto& target, std::int64_t minimum, std::int64_t maximum) {
    return [&reader, &target, minimum, maximum](const YamlNode& node, const std::string& name) {
      using Target = std::remove_reference_t<decltype(target)>;
      const std::int64_t value = reader.integer(node, name, minimum, maximum);
      if constexpr (std::is_same_v<Target, std::optional<std::int64_t>>) {
        target = value;
      } else {
        target = static_cast<int>(value);
      }
    };
  };
  const auto word = [&reader](std::string& target, const char* what, std::string_view others) {
    return [&reader, &target, what, others](const YamlNode& node, const std::string& name) {
      target = reader.string(node, name, what);
      reader.at(node, [&] { check_name(name, target, others); });
    };
  };
  const auto path = [&reader](std::string& target, const char* what) {
    return [&reader, &target, what](const YamlNode& node, const std::string& name) {
      target = reader.path(node, name, what);
    };
  };
  const auto map = [&reader](const Reader::Keys& keys) {
    return [&reader, keys](const YamlNode& node, const std::string& name) {
      reader.expect(node, name, Kind::kMap, "keys and values below it");
      reader.read_map(node, name + ".", keys);
    };
  };
  const auto device = [&](const YamlNode& node, const std::string& name) {
    const std::vector<std::string> devices = {"auto", "cpu", "cuda"};
    settings.device = reader.string(node, name, any_of(devices));
    if (std::find(devices.begin(), devices.end(), settings.device) == devices.end()) {
      reader.refuse(node, name, quote(settings.device), any_of(devices));
    }
  };
  const auto time = [&](const YamlNode& node, const std::string& name) {
    reader.expect(node, name, Kind::kScalar, "HH:MM:SS or DAYS-HH:MM:SS, e.g. 12:00:00");
    reader.at(node, [&] { resources.time_s = parse_time(name, node.text); });
  };
  const auto arguments = [&](const YamlNode& node, const std::string& name) {
    settings.arguments = reader.arguments(node, name);
  };
  const auto files = [&](const YamlNode& node, const std::string& name) {
    resources.transfer_files = reader.paths(node, name);
  };

  reader.read_map(
      root, "",
      {{"script_path", path(settings.script_path, "the path of a program")},
       {"out_dir", path(settings.out_dir, "the path of a folder")},
       {"arguments", arguments},
       {"nodes", integer(resources.nodes, 1, kMostNodes)},
       {"time", time},
       {"account", word(resources.account, "an account's name", kAccountOthers)},
       {"partition", word(resources.partition, "partitions' names", kPartitionOthers)},
       {"constraint", word(resources.constraint, "features", kConstraintOthers)},
       {"local",
        map({{"device", device},
             {"condor", map({{"bid", integer(resources.bid, 0, kHighestBid)},
                             {"num_cpus", integer(resources.cpus, 1, kMostCpus)},
                             {"memory_cpus", integer(resources.memory_mb, 1, kMostMegabytes)},
                             {"num_gpus", integer(resources.gpus, 0, kMostGpus)},
                             {"memory_gpus", integer(resources.gpu_memory_mb, 1, kMostMegabytes)},
                             {"transfer_files", files}})}})}});
  reader.need(root, "script_path", "the path of a program");
  reader.need(root, "out_dir", "the path of a folder");
  return settings;
}

}  // namespace ddp::submit
