// common/base/command_line.hpp - CLI11 with options in the groups of --help and strict values.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "common/base/parse.hpp"

// No header includes CLI11, which takes seconds to compile.
namespace CLI {
class App;
}  // namespace CLI

namespace ddp {

/// Base name of this program's executable, for messages and default file names.
std::string program_name();

using Choices = std::vector<std::string>;

/// "a, b or c"
std::string join(const Choices& choices);

/// @return `text` @throws UsageError unless it is one of `choices`
const std::string& check_choice(const std::string& name, const std::string& text,
                                const Choices& choices);

/// The path in `text`, with the home folder for a leading "~".
/// @throws UsageError for a URL, and for what only a shell replaces: "$HOME/x", "~me/x"
std::string parse_path(const std::string& name, const std::string& text);

/// @param is_replaced by a rename, which a pipe or a device must not be
/// @throws UsageError unless `path` is empty, or a file in an existing, writable folder
void check_output_file(const std::string& name, const std::string& path, bool is_replaced = true);
/// Checks that no file is that of two options, of which one would be lost. Empty paths are none.
/// @throws UsageError
void expect_different_files(const std::string& names, const std::vector<std::string>& paths);

/// Thrown after --help or --version was answered on stdout.
struct HelpPrinted {};

/// "--world_sizes=a_b" -> "--world-sizes=a_b"; texts without "--" in front stay as they are.
std::string with_dashes(const std::string& argument);

/// How the value of an option is written, and where it goes. Values are parsed here, because
/// CLI11's own conversion takes "010" for 8 and "nan" for a number.
struct OptionValue {
  std::string unit;  ///< stands for the value in --help; empty: a flag
  /// The value in use, as messages show it and as ranks and snapshots compare it; told() replaces
  /// it. Empty: none.
  std::string text;
  std::string initial;  ///< the default in --help, or empty
  /// Stores the value of the option `name`, which is empty only for a flag.
  std::function<void(const std::string& name, const std::string& text)> store;
  /// kSeveral: values behind one name; kEach: one behind each name.
  enum Times { kOnce, kLastCounts, kSeveral, kEach } times = kOnce;
  std::string alone = "";  ///< stored for a name without a value; empty: refused

  OptionValue& initially(const std::string& shown) { return initial = shown, *this; }
  OptionValue& told(const std::string& present) { return text = present, *this; }
  OptionValue& repeatable() { return times = kLastCounts, *this; }
};

/// Text of a value; empty for an unset std::optional.
template <typename T>
std::string text_of(const T& value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "";
}

/// Values by their type, with the target that they are stored in.
namespace takes {

/// @param parse (name, text) -> the value, or throws
template <typename Target, typename Parse>
OptionValue parsed(Target& target, const std::string& unit, Parse parse) {
  const std::string present = text_of(target);
  return {unit, present, present,
          [&target, parse](const auto& name, const auto& text) { target = parse(name, text); }};
}

template <typename Target, typename Least, typename Integer>
OptionValue integer(Target& target, Least minimum, Integer maximum) {
  return parsed(target, "N", [minimum, maximum](const auto& name, const auto& text) {
    return parse_integer<Integer>(name, text, minimum, maximum);
  });
}

template <typename Target>
OptionValue positive(Target& target, const std::string& unit, double maximum) {
  return parsed(target, unit, [maximum](const auto& name, const auto& text) {
    return parse_positive(name, text, maximum);
  });
}

inline OptionValue text(std::string& target, const std::string& unit) {
  return parsed(target, unit, [](const auto&, const auto& text) { return text; });
}
inline OptionValue path(std::string& target, const std::string& unit) {
  return parsed(target, unit, parse_path);
}
inline OptionValue choice(std::string& target, const Choices& choices) {
  return parsed(target, join(choices), [choices](const auto& name, const auto& text) {
    return check_choice(name, text, choices);
  });
}
inline OptionValue flag(bool& target) {
  return {"", text_of(target), "", [&target](const auto&, const auto&) { target = true; }};
}

}  // namespace takes

/// Adds options to one group of --help, which does not list a group without title.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

  /// @param names "total_epochs,--total-epochs"; messages use the first
  void add(const std::string& names, const OptionValue& value, const std::string& help);

 private:
  CLI::App& app_;
  std::string title_;
};

class CommandLine {
 public:
  /// @param column_width characters of --help before the help texts
  CommandLine(const std::string& program, const std::string& description,
              const std::string& version, const std::string& footer, std::size_t column_width);
  ~CommandLine();

  OptionGroup group(const std::string& title) { return {*app_, title}; }
  void require(const std::string& positional);
  bool given(const std::string& name) const;

  /// Stores all values, in the order in which the options were added. Underscores in names are
  /// dashes. The error for an unknown name suggests the nearest one; other errors are CLI11's.
  /// @throws HelpPrinted @throws UsageError
  void parse(int argc, const char* const* argv) { parse({argv + std::min(argc, 1), argv + argc}); }
  void parse(std::vector<std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace ddp
