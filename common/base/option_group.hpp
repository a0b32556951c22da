// common/base/option_group.hpp - inside options: one group of --help, with values that are parsed
// strictly.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/parse.hpp"

namespace ddp::internal {

using Choices = std::vector<std::string>;

inline std::string join(const Choices& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  }
  return text;
}

/// Adds options to one group of --help. CLI11 only splits the command line: values are parsed
/// strictly here, because its own conversion takes "010" for 8 and "nan" for a number.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string title) : app_(app), title_(std::move(title)) {}

  template <typename Store>
  CLI::Option* value(const std::string& names, const std::string& unit, const std::string& initial,
                     const std::string& help, Store store) {
    // "total_epochs,--total-epochs": messages use the first name.
    const std::string name = names.substr(0, names.find(','));
    return app_
        .add_option_function<std::string>(
            names, [name, store](const std::string& text) { store(name, text); }, help)
        ->option_text(unit + (initial.empty() ? "" : " (default " + initial + ")"))
        ->group(title_);
  }

  template <typename Target, typename Integer>
  CLI::Option* integer(const std::string& names, Target& target, Integer minimum, Integer maximum,
                       const std::string& initial, const std::string& help) {
    return value(names, "N", initial, help,
                 [&target, minimum, maximum](const std::string& name, const std::string& text) {
                   target = parse_integer<Integer>(name, text, minimum, maximum);
                 });
  }

  /// @param later values that are planned: refused, but not as if they were a typing error
  /// An empty `target`: no default to show.
  CLI::Option* choice(const std::string& name, std::string& target, const Choices& choices,
                      const Choices& later, const std::string& help) {
    const std::string initial = target;
    return value(
        name, join(choices), initial, help,
        [&target, choices, later](const std::string& option, const std::string& text) {
          if (std::find(later.begin(), later.end(), text) != later.end()) {
            throw UsageError(option + ": " + quote(text) + " is not available yet, expected " +
                             join(choices));
          }
          if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
            throw UsageError(option + ": got " + quote(text) + ", expected " + join(choices));
          }
          target = text;
        });
  }

  CLI::Option* widths(const std::string& name, std::vector<int64_t>& target, size_t fewest,
                      const std::string& initial, const std::string& help) {
    return value(name, "N,N,...", initial, help,
                 [&target, fewest](const std::string& option, const std::string& text) {
                   target.clear();
                   std::istringstream list(text + ",");
                   for (std::string width; std::getline(list, width, ',');) {
                     target.push_back(parse_integer<int64_t>(option, width, 1));
                   }
                   if (target.size() < fewest) {
                     throw UsageError(option + ": got " + quote(text) + ", expected at least " +
                                      std::to_string(fewest) + " widths, e.g. 20,64,1");
                   }
                 });
  }

  CLI::Option* path(const std::string& name, std::string& target, const std::string& initial,
                    const std::string& help) {
    return value(name, "PATH", initial, help,
                 [&target](const std::string&, const std::string& text) { target = text; });
  }

  CLI::Option* flag(const std::string& name, bool& target, const std::string& help) {
    return app_.add_flag(name, target, help)->group(title_);
  }

 private:
  CLI::App& app_;
  std::string title_;
};

}  // namespace ddp::internal
