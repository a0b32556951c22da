// common/base/command_line.hpp - what a program can be told: options in the groups of --help,
// values that are taken strictly, mistakes in one line.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/parse.hpp"

// No header includes CLI11, which takes seconds to compile.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ddp {

using Choices = std::vector<std::string>;

/// "a, b or c"
std::string join(const Choices& choices);

/// What `word` was probably meant to be, or an empty text: a few letters may differ, capitals and
/// "-" for "_" do not count.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// @return `text` @throws UsageError unless it is one of `choices`
const std::string& check_choice(const std::string& name, const std::string& text,
                                const Choices& choices);

/// --help or --version was asked for, and answered on stdout: nothing is left to do.
struct Answered {};

/// "--world_sizes=a_b" -> "--world-sizes=a_b"; what does not start with "--" stays as it is.
std::string with_dashes(const std::string& argument);

/// An option that was added, to say more about it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& excludes(const Option& other);
  Option& hidden();  ///< from --help
  Option& repeatable();  ///< each time it is given its value is stored
  Option& value_optional();  ///< without a value it stores an empty text

 private:
  CLI::Option* option_;
};

/// Called with an option's name and what was given.
using StoreValue = std::function<void(const std::string& name, const std::string& text)>;
using StoreValues =
    std::function<void(const std::string& name, const std::vector<std::string>& texts)>;

/// Adds options to one group of --help. CLI11 only splits the command line: values are parsed
/// strictly here, because its own conversion takes "010" for 8 and "nan" for a number.
///
/// `names`: "total_epochs,--total-epochs"; messages use the first. `unit` is what --help shows for
/// the value. `initial`: the default that --help shows, or empty.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

  Option value(const std::string& names, const std::string& unit, const std::string& initial,
               const std::string& help, const StoreValue& store);
  /// "--devices 0 1"
  Option values(const std::string& names, const std::string& unit, const std::string& help,
                const StoreValues& store);
  /// "--stages 03,04", or "--stages 03 04"
  Option list(const std::string& names, const std::string& unit, const std::string& help,
              const StoreValues& store);
  Option text(const std::string& names, const std::string& unit, std::string& target,
              const std::string& initial, const std::string& help);
  /// An empty `target`: no default to show.
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
  /// @param column_width of --help, before the texts
  CommandLine(const std::string& program, const std::string& description,
              const std::string& version, const std::string& footer, std::size_t column_width);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  OptionGroup group(const std::string& title) { return {*app_, title}; }
  /// Puts --help and --version behind the options so far, instead of first into their own group.
  void put_help_into(const std::string& title);
  /// These positionals must be given, unless the flag `unless` is.
  /// @param example of their values
  void require(const std::vector<std::string>& positionals, const std::string& unless,
               const std::string& example);
  bool given(const std::string& name) const;

  /// Stores all values, in the order in which the options were added.
  /// @throws Answered
  /// @throws UsageError with `hint` after CLI11's words
  void parse(std::vector<std::string> arguments, const std::string& hint);
  /// As parse(), in our words: underscores in names become dashes, "--lr -1" is a value and no
  /// option, and what is unknown, empty or given twice is refused by name.
  /// @throws Answered @throws UsageError
  void parse_strictly(int argc, const char* const* argv);

 private:
  std::vector<std::string> check_names(int argc, const char* const* argv) const;
  [[noreturn]] void refuse_unknown(const std::string& name) const;

  std::unique_ptr<CLI::App> app_;
  std::string version_;
  std::vector<std::string> required_;
  std::string required_unless_;
  std::string example_;
};

}  // namespace ddp
