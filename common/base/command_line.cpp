#include "common/base/command_line.hpp"

#include <pwd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <regex>
#include <set>

namespace ddp {
namespace {

/// Levenshtein distance.
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

}  // namespace

std::string program_name() {
  return std::filesystem::read_symlink("/proc/self/exe").filename();
}

std::string join(const Choices& choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
  }
  return text;
}

const std::string& check_choice(const std::string& name, const std::string& text,
                                const Choices& choices) {
  if (std::ranges::find(choices, text) == choices.end()) {
    refuse("{}: got {}, expected {}", name, quote(text), join(choices));
  }
  return text;
}

std::string parse_path(const std::string& name, const std::string& text) {
  static const std::regex for_a_shell(R"(^~[^/]|\$[A-Za-z_{(])");
  const bool is_url = text.find("://") < text.find('/');
  if (is_url || std::regex_search(text, for_a_shell)) {
    refuse("{}: got {}, expected a path of this machine, without a URL, $VARIABLE or ~USER", name,
           quote(text));
  }
  if (!text.starts_with('~')) {
    return text;
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {  // as in a job of HTCondor
    const passwd* const user = getpwuid(geteuid());
    if (user == nullptr) {
      refuse("{}: got {}, expected HOME to be set", name, quote(text));
    }
    home = user->pw_dir;
  }
  return home + text.substr(1);
}

void check_output_file(const std::string& name, const std::string& path, bool is_replaced) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  if (!path.empty() &&
      (fs::is_directory(path, error) || access(folder.c_str(), W_OK | X_OK) != 0 ||
       (is_replaced && fs::path(path).filename().native().size() > 234))) {  // .tmp.* is longer
    refuse("{}: got {}, expected a file in an existing, writable folder, named by <= 234 bytes",
           name, quote(path));
  }
  // /dev/stdout is a link, perhaps to a regular file.
  if (is_replaced && fs::exists(path, error) &&
      (!fs::is_regular_file(path, error) || folder == "/dev" || folder == "/dev/fd")) {
    refuse("{}: got {}, expected a regular file, or a new name", name, quote(path));
  }
}

void expect_different_files(const std::string& names, const std::vector<std::string>& paths) {
  std::set<std::filesystem::path> files;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto file = weakly_canonical(std::filesystem::absolute(path, error), error);
    if (!path.empty() && !files.insert(file).second) {
      refuse("{}: got {} twice, expected different files", names, quote(path));
    }
  }
}

std::string with_dashes(const std::string& argument) {
  std::string result = argument;
  if (argument.starts_with("--")) {
    std::replace(result.begin(), std::find(result.begin(), result.end(), '='), '_', '-');
  }
  return result;
}

void OptionGroup::add(const std::string& names, const OptionValue& value, const std::string& help) {
  const std::string name = names.substr(0, names.find(','));
  if (value.unit.empty()) {
    const auto store = [name, value] { value.store(name, ""); };
    app_.add_flag_callback(names, store, help)->disable_flag_override()->group(title_);
    return;
  }
  CLI::callback_t store = [name, value](const CLI::results_t& texts) {
    for (const std::string& text : texts) {
      if (text.empty()) {
        refuse("{}: got \"\", expected {}", name, value.unit);
      }
      value.store(name, text);
    }
    return true;
  };
  CLI::Option* const option = app_.add_option(names, std::move(store), help);
  const std::string initial = value.initial.empty() ? "" : " (default " + value.initial + ")";
  option->option_text(value.unit + initial)->type_name(value.unit)->group(title_);
  if (!value.alone.empty()) {
    option->expected(0, 1)->default_str(value.alone);
  }
  if (value.times == OptionValue::kLastCounts) {
    option->trigger_on_parse()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  } else if (value.times != OptionValue::kOnce) {
    option->expected(1, -1)->allow_extra_args(value.times == OptionValue::kSeveral);
  }
}

namespace {

/// Long name that `word` is probably a typing error for, or an empty text. "--epochs" gives
/// "total-epochs".
std::string nearest(const std::string& word, const CLI::App& app) {
  constexpr std::size_t kShortestPart = 4;
  const std::string wanted = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, wanted.size() / 3) + 1;
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const bool is_part = wanted.size() >= kShortestPart && name.find(wanted) != std::string::npos;
      const std::size_t distance = is_part ? 1 : edit_distance(wanted, name);
      if (distance < best_distance) {
        best_distance = distance;
        best = name;
      }
    }
  }
  return best;
}

void check_names(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (argument == "--") {
      return;
    }
    if (name.size() < 2 || name[0] != '-' || std::isdigit(static_cast<unsigned char>(name[1])) ||
        app.get_option_no_throw(name) != nullptr) {
      continue;
    }
    const std::string best = nearest(name, app);
    refuse("unknown option {}, {}", quote(name),
           best.empty() ? "expected one that --help lists" : "did you mean --" + best + "?");
  }
}

}  // namespace

CommandLine::CommandLine(const std::string& program, const std::string& description,
                         const std::string& version, const std::string& footer,
                         std::size_t column_width)
    : app_(std::make_unique<CLI::App>(description, program)) {
  app_->set_version_flag("--version", version);
  app_->footer(footer);
  app_->get_formatter()->column_width(column_width);
}

CommandLine::~CommandLine() = default;

void CommandLine::require(const std::string& positional) {
  app_->get_option(positional)->required();
}

bool CommandLine::given(const std::string& name) const {
  return app_->count(name) > 0;
}

void CommandLine::parse(std::vector<std::string> arguments) {
  std::ranges::transform(arguments, arguments.begin(), with_dashes);
  check_names(*app_, arguments);
  std::ranges::reverse(arguments);  // CLI11 reads them from the back
  try {
    app_->parse(arguments);
  } catch (const CLI::Success& wish) {
    app_->exit(wish);  // prints the answer
    throw HelpPrinted();
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    std::ranges::replace(line, '\n', ' ');
    throw UsageError(line + ", expected what --help lists");
  }
}

}  // namespace ddp
