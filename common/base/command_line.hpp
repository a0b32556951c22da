// common/base/command_line.hpp - CLI11 with options in the groups of --help and strict values.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/parse.hpp"

// No header includes CLI11, which takes seconds to compile.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ddp {

/// Base name of this program's executable, for messages and default file names.
std::string program_name();

using Choices = std::vector<std::string>;

/// "a, b or c"
std::string join(const Choices& choices);

/// Known word that `word` is probably a typing error for, or an empty text. Capitals do not count,
/// nor "-" for "_". "--epochs" gives "--total-epochs".
std::string nearest(const std::string& word, const std::vector<std::string>& known);

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
struct Answered {};

/// "--world_sizes=a_b" -> "--world-sizes=a_b"; texts without "--" in front stay as they are.
std::string with_dashes(const std::string& argument);

/// Handle of an added option, for its further properties.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& hidden();  ///< not listed by --help
  Option& repeatable();  ///< may be given several times; all values are stored

 private:
  CLI::Option* option_;
};

/// Stores the value, which is not empty, of the option `name`.
using StoreValue = std::function<void(const std::string& name, const std::string& text)>;
using StoreValues =
    std::function<void(const std::string& name, const std::vector<std::string>& texts)>;

/// Adds options to one group of --help. CLI11 splits the command line; values are parsed here,
/// because CLI11's own conversion takes "010" for 8 and "nan" for a number.
///
/// `names`: "total_epochs,--total-epochs"; messages use the first. `unit` stands for the value in
/// --help. `initial`: the default in --help, or empty.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

  Option value(const std::string& names, const std::string& unit, const std::string& initial,
               const std::string& help, const StoreValue& store);
  /// Takes several values: "--devices 0 1".
  Option values(const std::string& names, const std::string& unit, const std::string& help,
                const StoreValues& store);
  Option text(const std::string& names, const std::string& unit, std::string& target,
              const std::string& initial, const std::string& help);
  Option path(const std::string& names, const std::string& unit, std::string& target,
              const std::string& initial, const std::string& help);
  /// The default is the value of `target`, if it is not empty.
  Option choice(const std::string& names, std::string& target, const Choices& choices,
                const std::string& help);
  Option flag(const std::string& names, bool& target, const std::string& help);

  template <typename Target, typename Integer>
  Option integer(const std::string& names, Target& target, Integer minimum, Integer maximum,
                 const std::string& initial, const std::string& help) {
    return value(names, "N", initial, help,
                 [&target, minimum, maximum](const std::string& name, const std::string& text) {
                   target = parse_integer<Integer>(name, text, minimum, maximum);
                 });
  }

  template <typename Target>
  Option positive(const std::string& names, const std::string& unit, Target& target, double maximum,
                  const std::string& initial, const std::string& help) {
    return value(names, unit, initial, help,
                 [&target, maximum](const std::string& name, const std::string& text) {
                   target = parse_positive(name, text, maximum);
                 });
  }

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
  /// dashes. The error for an unknown name suggests the nearest known name; other errors are
  /// CLI11's.
  /// @throws Answered @throws UsageError
  void parse(int argc, const char* const* argv);
  void parse(std::vector<std::string> arguments);

 private:
  void check_names(const std::vector<std::string>& arguments) const;

  std::unique_ptr<CLI::App> app_;
};

}  // namespace ddp
