// bench/settings.hpp - the command line of bench.
#pragma once

#include <iterator>

#include "common/base/parse.hpp"

namespace ddp::bench {

/// Adds the words of a text, which single blanks separate.
template <typename... Args>
void add_words(std::vector<std::string>& words, fmt::format_string<Args...> text, Args&&... args) {
  std::ranges::move(split(fmt::format(text, std::forward<Args>(args)...), ' '),
                    std::back_inserter(words));
}

template <typename T>
bool contains(const std::vector<T>& list, const std::type_identity_t<T>& value) {
  return std::ranges::find(list, value) != list.end();
}

struct Settings {
  // Runs to compare. An empty list: the plan's default.
  std::vector<std::string> stages;  ///< programs, or numbers of stages, "03"
  std::vector<int> world_sizes;  ///< ascending
  std::vector<std::string> backends;  ///< names of backends
  std::vector<std::string> launchers;  ///< rows of launchers.cpp
  std::vector<std::string> models;
  std::vector<std::string> scaling = {"weak"};  ///< "weak", "strong"
  std::vector<std::string> peers;
  std::vector<std::string> programs;  ///< commands of --program, for a shell
  std::vector<int> nodes = {1};  ///< numbers of nodes for srun, ascending
  std::string device = "auto";
  std::uint64_t seed = 42;
  std::string filter;  ///< regular expression for names of runs

  // Measurement.
  std::optional<std::int64_t> steps;  ///< timed steps of each run
  std::optional<int> repetitions;
  bool quick = false;
  bool full = false;
  double timeout_s = 300;  ///< limit for a run

  // Output.
  bool dry_run = false;
  bool list_only = false;
  bool json_on_stdout = false;  ///< stdout then holds nothing else
  std::string json_file;  ///< empty: none
  std::string html_file;  ///< empty: none
  std::vector<std::string> beside;  ///< reports to compare with
  bool no_samples = false;  ///< true: the document has no single steps

  std::string stage_dir;
  std::string peers_dir;
  std::vector<std::string> arguments;  ///< the command line

  /// True if the user named stages, launchers or backends: then all runs repeat equally often.
  bool by_name() const { return !stages.empty() || !launchers.empty() || !backends.empty(); }
  /// True if stages take part: without --program, and beside it where they are asked for.
  bool with_stages() const {
    return programs.empty() || !stages.empty() || !models.empty() || !peers.empty();
  }
  bool on_cpu() const { return device == "cpu"; }  ///< once make_plan() has replaced "auto"
  int most_repetitions() const { return repetitions.value_or(quick ? 1 : full ? 15 : 6); }
};

/// Dashes and underscores in names of options are equal.
/// @throws HelpPrinted after --help and --version, UsageError in one line
Settings parse_settings(int argc, const char* const* argv);

}  // namespace ddp::bench
