#include "tools/submit/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <set>

#include "common/base/parse.hpp"
#include "tools/submit/quoting.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

#ifdef DDP_VERSION
constexpr const char* kVersion = "submit " DDP_VERSION;
#else
constexpr const char* kVersion = "submit";
#endif

constexpr const char* kSubmitText =
    "Submits a program to HTCondor or Slurm, or runs it here, as a settings file says.\n"
    "Example: submit --settings-file settings.yaml --sweep lr=0.1,0.01 -- 50 10 --dataset digits\n"
    "What follows -- goes to the program and replaces the settings' arguments.\n"
    "Afterwards: submit list|status|logs|cancel|resubmit, each with its own --help.";

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 the scheduler or a job failed, 2 usage or settings, 75 the scheduler "
    "gave no answer.";

constexpr int kMostJobs = 1'000'000;

const std::map<std::string, Action>& actions() {
  static const std::map<std::string, Action> kActions = {
      {"list", Action::kList},     {"status", Action::kStatus},     {"logs", Action::kLogs},
      {"cancel", Action::kCancel}, {"resubmit", Action::kResubmit},
  };
  return kActions;
}

const char* action_text(Action action) {
  switch (action) {
    case Action::kList:
      return "Lists the jobs of an out_dir as they were last seen; asks nobody.";
    case Action::kStatus:
      return "Asks the scheduler about the jobs that are not over, then lists them.";
    case Action::kLogs:
      return "Prints where the jobs' output is, or the end of one job's output.";
    case Action::kCancel:
      return "Takes jobs out of the queue, or stops them.";
    case Action::kResubmit:
      return "Submits jobs again: those named, or all that failed, were lost or never submitted. "
             "They "
             "run in their\nold folders, so a stage goes on from its snapshot.";
    case Action::kSubmit:
      break;
  }
  return kSubmitText;
}

/// "--settings_file=a_b" -> "--settings-file=a_b"
std::string with_dashes(const std::string& argument) {
  if (!argument.starts_with("--")) {
    return argument;
  }
  const std::size_t end = std::min(argument.find('='), argument.size());
  std::string name = argument.substr(0, end);
  std::replace(name.begin(), name.end(), '_', '-');
  return name + argument.substr(end);
}

/// Refuses what is unknown, given twice, or without its value, in our words.
std::vector<std::string> check_names(const CLI::App& app, const std::vector<std::string>& given,
                                     const std::set<std::string>& repeatable) {
  std::set<std::string> seen;
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string argument = with_dashes(given[i]);
    arguments.push_back(argument);
    if (!argument.starts_with('-')) {
      continue;
    }
    const std::string name = argument.substr(0, argument.find('='));
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option == nullptr) {
      std::vector<std::string> known;
      for (const CLI::Option* candidate : app.get_options()) {
        for (const std::string& long_name : candidate->get_lnames()) {
          known.push_back("--" + long_name);
        }
      }
      const std::string guess = nearest(name, known);
      throw UsageError(
          "unknown option " + quote_bytes(name) +
          (guess.empty() ? ", expected one that --help lists" : ", did you mean " + guess + "?"));
    }
    if (!seen.insert(name).second && repeatable.count(name) == 0) {
      throw UsageError(name + " was given twice, expected once");
    }
    const bool takes_value = option->get_items_expected_max() > 0;
    const bool has_value = name.size() < argument.size();
    if (takes_value && !has_value) {
      if (i + 1 == given.size() || given[i + 1].starts_with("--")) {
        throw UsageError(name + " has no value, expected " + name + " " +
                         option->get_option_text());
      }
      // Taken as it is, even if it starts with a dash; --gpus may have more of them.
      arguments.back() += "=" + given[++i];
    } else if (!takes_value && has_value) {
      throw UsageError(name + ": got a value, expected none");
    }
    if (arguments.back().size() == name.size() + 1) {
      throw UsageError(name + " is empty, expected " + option->get_option_text());
    }
  }
  return arguments;
}

struct Answered {};  // what --help and --version end with

void parse(CLI::App& app, std::vector<std::string> arguments) {
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    throw Answered();
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw UsageError(text + ", expected what --help lists");
  }
}

CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& target,
                      const std::string& unit, const std::string& help) {
  return app.add_option(name, target, help)->option_text(unit);
}

void parse_submission(CLI::App& app, const std::vector<std::string>& given, CommandLine& line) {
  std::string scheduler;
  std::string nodes;
  std::vector<std::string> gpus;
  std::string time;
  std::vector<std::string> sweep;
  add_text(app, "--settings-file", line.settings_file, "FILE",
           "YAML: what to run, where its output goes, what it needs; see condor/settings.yaml");
  add_text(
      app, "--scheduler", scheduler, "condor, slurm or local",
      "default: condor, or slurm if only sbatch is here; local runs the jobs here, one by one");
  app.add_flag("--dry-run", line.dry_run, "print the files and commands, write and submit nothing");
  add_text(app, "--nodes", nodes, "N", "machines of each job");
  app.add_option("--gpus", gpus, "GPUs of each node: their number counts, a scheduler picks them")
      ->option_text("N N ...")
      ->expected(1, -1);
  add_text(app, "--time", time, "HH:MM:SS", "limit for one start of a job");
  add_text(app, "--account", line.account, "NAME", "who pays");
  add_text(app, "--partition", line.partition, "NAME", "Slurm: which part of the cluster");
  app.add_option("--sweep", sweep, "one job per value (and combination, if given several times)")
      ->option_text("KEY=V1,V2,...")
      ->expected(1, -1)
      ->take_all();
  app.footer(kExitCodes);
  // Every value of --sweep stands alone, those of --gpus in a row.
  parse(app, check_names(app, given, {"--sweep"}));

  if (line.settings_file.empty()) {
    throw UsageError("--settings-file is missing, expected e.g. --settings-file settings.yaml");
  }
  if (!scheduler.empty()) {
    line.scheduler = parse_scheduler("--scheduler", scheduler);
  }
  if (!nodes.empty()) {
    line.nodes = parse_integer<int>("--nodes", nodes, 1, kMostNodes);
  }
  if (!gpus.empty()) {
    std::set<int> distinct;
    line.gpus.emplace();
    for (const std::string& gpu : gpus) {
      line.gpus->push_back(parse_integer<int>("--gpus", gpu, 0, kMostGpus - 1));
      if (!distinct.insert(line.gpus->back()).second) {
        throw UsageError("--gpus: got " + gpu + " twice, expected different devices");
      }
    }
  }
  if (!time.empty()) {
    line.time_s = parse_time("--time", time);
  }
  if (!line.account.empty()) {
    check_name("--account", line.account, kAccountOthers);
  }
  if (!line.partition.empty()) {
    check_name("--partition", line.partition, kPartitionOthers);
  }
  for (const std::string& axis : sweep) {
    line.sweep.push_back(parse_sweep(axis));
  }
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

void parse_tracking(CLI::App& app, const std::vector<std::string>& given, CommandLine& line) {
  std::vector<std::string> positional;
  std::string lines;
  const Action action = line.action;
  add_text(app, "--settings-file", line.settings_file, "FILE", "whose out_dir is meant");
  add_text(app, "--out-dir", line.out_dir, "DIR", "default: the current folder");
  app.add_option("what", positional, "numbers of jobs, or the out_dir")
      ->option_text("[JOB...] [DIR]");
  if (action == Action::kList || action == Action::kStatus) {
    app.add_flag("--json", line.json, "one JSON document instead of the table");
  } else if (action == Action::kLogs) {
    add_text(app, "--lines", lines, "N", "how many of the last lines (default 40)");
  } else if (action == Action::kCancel) {
    app.add_flag("--all", line.all, "all jobs that are not over");
  } else {
    app.add_flag("--failed", line.failed,
                 "all that failed, were refused, lost or never submitted; not those cancelled");
    app.add_flag("--dry-run", line.dry_run, "print the files and commands, submit nothing");
  }
  app.footer(kExitCodes);
  parse(app, check_names(app, given, {}));
  for (const std::string& word : positional) {
    if (is_number(word)) {
      const int job = parse_integer<int>("JOB", word, 0, kMostJobs);
      if (std::find(line.jobs.begin(), line.jobs.end(), job) != line.jobs.end()) {
        throw UsageError("job " + word + " was given twice, expected once");
      }
      line.jobs.push_back(job);
    } else if (line.out_dir.empty()) {
      line.out_dir = word;
    } else {
      throw UsageError("unexpected argument " + quote_bytes(word) + ", expected one out_dir");
    }
  }
  if (!line.settings_file.empty() && !line.out_dir.empty()) {
    throw UsageError("--settings-file and an out_dir were given, expected one of them");
  }
  if (!lines.empty()) {
    line.lines = parse_integer<int>("--lines", lines, 0, kMostJobs);
  }
  const bool picks = action == Action::kCancel || action == Action::kResubmit;
  const bool everything = line.all || line.failed;
  if (picks && line.jobs.empty() != everything) {
    const std::string flag = action == Action::kCancel ? "--all" : "--failed";
    throw UsageError(everything ? flag + " and job numbers were given, expected one of them"
                                : "no job was given, expected job numbers or " + flag);
  }
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv) {
  std::vector<std::string> given(argv + 1, argv + argc);
  CommandLine line;
  const auto end = std::find(given.begin(), given.end(), "--");
  if (end != given.end()) {
    line.arguments.emplace(end + 1, given.end());
    given.erase(end, given.end());
    for (std::size_t i = 0; i < line.arguments->size(); ++i) {
      check_argument("program argument " + std::to_string(i + 1), (*line.arguments)[i]);
    }
  }
  std::string name = "submit";
  if (!given.empty() && !given.front().starts_with('-')) {
    const auto action = actions().find(given.front());
    if (action == actions().end()) {
      std::vector<std::string> names;
      for (const auto& [known, value] : actions()) {
        names.push_back(known);
      }
      const std::string guess = nearest(given.front(), names);
      throw UsageError("unknown command " + quote_bytes(given.front()) +
                       (guess.empty() ? ", expected " + any_of(names) + ", or --settings-file FILE"
                                      : ", did you mean " + guess + "?"));
    }
    line.action = action->second;
    name += " " + given.front();
    given.erase(given.begin());
  }
  CLI::App app(action_text(line.action), name);
  app.set_version_flag("--version", std::string(kVersion));
  app.get_formatter()->column_width(40);
  if (line.action != Action::kSubmit && line.arguments) {
    throw UsageError("got -- after " + name + ", expected program arguments only in a submission");
  }
  try {
    (line.action == Action::kSubmit ? parse_submission : parse_tracking)(app, given, line);
  } catch (const Answered&) {
    return std::nullopt;
  }
  return line;
}

}  // namespace ddp::submit
