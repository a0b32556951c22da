#include "common/base/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/refuse.hpp"

namespace ddp {
namespace {

constexpr const char* kSeeHelp = ", expected what --help lists";

std::string first_name(const std::string& names) {
  return names.substr(0, names.find(','));
}

std::string joined(const std::vector<std::string>& words, const std::string& last_separator) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? last_separator : ", ") + words[i];
  }
  return text;
}

/// Levenshtein's.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row.back();
}

/// In CLI11's words, on one line.
[[noreturn]] void refuse_as_cli11_does(const CLI::ParseError& error, const std::string& hint) {
  std::string text = error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  throw UsageError(text + hint);
}

std::string in_small_letters(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

}  // namespace

std::string join(const Choices& choices) {
  return joined(choices, " or ");
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(in_small_letters(word), in_small_letters(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

const std::string& check_choice(const std::string& name, const std::string& text,
                                const Choices& choices) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    refuse("{}: got {}, expected {}", name, quote(text), join(choices));
  }
  return text;
}

std::string with_dashes(const std::string& argument) {
  std::string result = argument;
  if (argument.starts_with("--")) {
    std::replace(result.begin(), std::find(result.begin(), result.end(), '='), '_', '-');
  }
  return result;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::hidden() {
  option_->group("");
  return *this;
}

Option& Option::repeatable() {
  option_->trigger_on_parse()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return *this;
}

Option& Option::value_optional() {
  option_->expected(0, 1);
  return *this;
}

Option OptionGroup::value(const std::string& names, const std::string& unit,
                          const std::string& initial, const std::string& help,
                          const StoreValue& store) {
  return Option(
      app_.add_option_function<std::string>(
              names,
              [name = first_name(names), store](const std::string& given) { store(name, given); },
              help)
          ->option_text(unit + (initial.empty() ? "" : " (default " + initial + ")"))
          ->type_name(unit)
          ->group(title_));
}

Option OptionGroup::values(const std::string& names, const std::string& unit,
                           const std::string& help, const StoreValues& store) {
  return Option(app_.add_option_function<std::vector<std::string>>(
                        names,
                        [name = first_name(names), store](const std::vector<std::string>& given) {
                          store(name, given);
                        },
                        help)
                    ->option_text(unit)
                    ->type_name(unit)
                    ->expected(1, -1)
                    ->group(title_));
}

Option OptionGroup::list(const std::string& names, const std::string& unit, const std::string& help,
                         const StoreValues& store) {
  const Option option = values(names, unit + " ...", help, store);
  app_.get_option(first_name(names))->delimiter(',')->type_name(unit);
  return option;
}

Option OptionGroup::text(const std::string& names, const std::string& unit, std::string& target,
                         const std::string& initial, const std::string& help) {
  return value(names, unit, initial, help,
               [&target](const std::string&, const std::string& given) { target = given; });
}

Option OptionGroup::choice(const std::string& names, std::string& target, const Choices& choices,
                           const std::string& help) {
  return value(names, join(choices), target, help,
               [&target, choices](const std::string& name, const std::string& given) {
                 target = check_choice(name, given, choices);
               });
}

Option OptionGroup::flag(const std::string& names, bool& target, const std::string& help) {
  return Option(app_.add_flag(names, target, help)->group(title_));
}

CommandLine::CommandLine(const std::string& program, const std::string& description,
                         const std::string& version, const std::string& footer,
                         std::size_t column_width)
    : app_(std::make_unique<CLI::App>(description, program)), version_(version) {
  app_->set_version_flag("--version", version_);
  app_->footer(footer);
  app_->get_formatter()->column_width(column_width);
}

CommandLine::~CommandLine() = default;

void CommandLine::put_help_into(const std::string& title) {
  app_->set_help_flag("-h,--help", "print this and exit")->group(title);
  app_->set_version_flag("--version", version_, "print the versions and exit")->group(title);
}

void CommandLine::require(const std::vector<std::string>& positionals, const std::string& unless,
                          const std::string& example) {
  required_ = positionals;
  for (const std::string& name : required_) {
    app_->get_option(name)->required();
  }
  required_unless_ = unless;
  example_ = example;
}

bool CommandLine::given(const std::string& name) const {
  return app_->count(name) > 0;
}

void CommandLine::refuse_unknown(const std::string& name) const {
  constexpr std::size_t kShortestPart = 4;
  const std::string part = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::vector<std::string> known;
  for (const CLI::Option* option : app_->get_options()) {
    for (const std::string& long_name : option->get_lnames()) {
      known.push_back("--" + long_name);
    }
  }
  // "--epochs" for "--total-epochs" is one word too few, however many letters that is.
  const auto longer = std::find_if(known.begin(), known.end(), [&part](const std::string& option) {
    return part.size() >= kShortestPart && option.find(part) != std::string::npos;
  });
  const std::string best = longer != known.end() ? *longer : nearest(name, known);
  refuse("unknown option {}, {}", quote(name),
         best.empty() ? "expected one that --help lists" : "did you mean " + best + "?");
}

/// Makes the arguments such that CLI11 cannot misread them.
std::vector<std::string> CommandLine::check_names(int argc, const char* const* argv) const {
  std::vector<std::string> arguments;
  std::set<const CLI::Option*> seen;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") {
      arguments.insert(arguments.end(), argv + i, argv + argc);
      break;
    }
    if (!argument.starts_with('-')) {
      arguments.push_back(argument);
      continue;
    }
    const std::size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* const option = app_->get_option_no_throw(name);
    if (option == nullptr) {
      refuse_unknown(name);
    }
    if (!seen.insert(option).second && !option->get_trigger_on_parse()) {
      throw UsageError(name + " was given twice, expected once");
    }
    if (option->get_items_expected_max() == 0) {
      if (equals != std::string::npos) {
        refuse("{}: got the value {}, expected none", name, quote(argument.substr(equals + 1)));
      }
      arguments.push_back(name);
      continue;
    }
    const bool follows = equals == std::string::npos;
    if (follows && (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--"))) {
      refuse("{0} has no value, expected {0} {1}", name, option->get_option_text());
    }
    const std::string value = follows ? argv[++i] : argument.substr(equals + 1);
    if (value.empty()) {
      refuse("{} is empty, expected {}", name, option->get_option_text());
    }
    arguments.push_back(name + "=" + value);
  }
  return arguments;
}

void CommandLine::parse(std::vector<std::string> arguments, const std::string& hint) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app_->parse(arguments);
  } catch (const CLI::CallForHelp&) {
    std::cout << app_->help();
    throw Answered();
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << '\n';
    throw Answered();
  } catch (const CLI::RequiredError&) {
    throw;  // for parse_strictly(): nobody else requires anything
  } catch (const CLI::ExtrasError& error) {
    if (required_.empty()) {
      refuse_as_cli11_does(error, hint);
    }
    refuse("unexpected argument {}, expected only {} before the options",
           quote(app_->remaining().front()), joined(required_, " and "));
  } catch (const CLI::ParseError& error) {
    for (const std::string& name : required_) {
      if (app_->count(name) > 1) {
        throw UsageError(name + " was given twice, expected once");
      }
    }
    refuse_as_cli11_does(error, hint);
  }
}

void CommandLine::parse_strictly(int argc, const char* const* argv) {
  const std::vector<std::string> arguments = check_names(argc, argv);
  try {
    // Required at first, so that "--devices 0 1 50 10" leaves them their two numbers.
    return parse(arguments, kSeeHelp);
  } catch (const CLI::RequiredError&) {
    if (!given(required_unless_)) {
      std::vector<std::string> missing;
      std::copy_if(required_.begin(), required_.end(), std::back_inserter(missing),
                   [this](const std::string& name) { return !given(name); });
      refuse("{} {} missing, expected e.g. \"{} {}\"", joined(missing, " and "),
             missing.size() == 1 ? "is" : "are", app_->get_name(), example_);
    }
  }
  for (const std::string& name : required_) {
    app_->get_option(name)->required(false);
  }
  parse(arguments, kSeeHelp);
}

}  // namespace ddp
