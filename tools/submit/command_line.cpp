// tools/submit/command_line.cpp - the options of submit and of its commands.
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

struct Command {
  Action action;
  const char* help;
};

const std::map<std::string, Command>& commands() {
  static const std::map<std::string, Command> kCommands = {
      {"list",
       {Action::kList, "Lists the jobs of an out_dir as they were last seen; asks nobody."}},
      {"status",
       {Action::kStatus, "Asks the scheduler about the jobs that are not over, then lists them."}},
      {"logs",
       {Action::kLogs, "Prints where the jobs' output is, or the end of one job's output."}},
      {"cancel", {Action::kCancel, "Takes jobs out of the queue, or stops them."}},
      {"resubmit",
       {Action::kResubmit,
        "Submits jobs again: those named, or all that failed, were lost or never submitted. They "
        "run in their\nold folders, so a stage goes on from its snapshot."}},
  };
  return kCommands;
}

/// "--settings_file=a_b" -> "--settings-file=a_b"
std::string with_dashes(const std::string& argument) {
  const std::size_t end = std::min(argument.find('='), argument.size());
  std::string name = argument.substr(0, end);
  if (name.starts_with("--")) {
    std::replace(name.begin(), name.end(), '_', '-');
  }
  return name + argument.substr(end);
}

[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& name) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& long_name : option->get_lnames()) {
      known.push_back("--" + long_name);
    }
  }
  const std::string guess = nearest(name, known);
  throw UsageError(
      "unknown option " + quote_bytes(name) +
      (guess.empty() ? ", expected one that --help lists" : ", did you mean " + guess + "?"));
}

/// Refuses what is unknown, given twice, or without its value, in our words.
std::vector<std::string> check_names(const CLI::App& app, const std::vector<std::string>& given) {
  std::set<std::string> seen;
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < given.size(); ++i) {
    arguments.push_back(with_dashes(given[i]));
    const std::string argument = arguments.back();
    if (!argument.starts_with('-')) {
      continue;
    }
    const std::string name = argument.substr(0, argument.find('='));
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (option == nullptr) {
      refuse_unknown(app, name);
    }
    if (!seen.insert(name).second && name != "--sweep") {
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
      refuse_value(name, "a value", "none");
    }
    if (arguments.back().size() == name.size() + 1) {
      throw UsageError(name + " is empty, expected " + option->get_option_text());
    }
  }
  return arguments;
}

/// One option with a value, which `store` reads strictly: CLI11 only splits the line.
template <typename Store>
void add(CLI::App& app, const std::string& name, const std::string& unit, const std::string& help,
         Store store) {
  app.add_option_function<std::string>(name, store, help)->option_text(unit);
}

void add_submission(CLI::App& app, CommandLine& line) {
  using Text = const std::string&;
  add(app, "--settings-file", "FILE",
      "YAML: what to run, where its output goes, what it needs; see condor/settings.yaml",
      [&](Text text) { line.settings_file = text; });
  add(app, "--scheduler", "condor, slurm or local",
      "default: condor, or slurm if only sbatch is here; local runs the jobs here, one by one",
      [&](Text text) { line.scheduler = parse_scheduler("--scheduler", text); });
  app.add_flag("--dry-run", line.dry_run, "print the files and commands, write and submit nothing");
  add(app, "--nodes", "N", "machines of each job",
      [&](Text text) { line.nodes = parse_integer<int>("--nodes", text, 1, kMostNodes); });
  const auto store_gpus = [&line](const std::vector<std::string>& gpus) {
    std::set<int> distinct;
    line.gpus.emplace();
    for (const std::string& gpu : gpus) {
      line.gpus->push_back(parse_integer<int>("--gpus", gpu, 0, kMostGpus - 1));
      if (!distinct.insert(line.gpus->back()).second) {
        refuse_value("--gpus", gpu + " twice", "different devices");
      }
    }
  };
  app.add_option_function<std::vector<std::string>>(
         "--gpus", store_gpus, "GPUs of each node: their number counts, a scheduler picks them")
      ->option_text("N N ...")
      ->expected(1, -1);
  add(app, "--time", "HH:MM:SS", "limit for one start of a job",
      [&](Text text) { line.time_s = parse_time("--time", text); });
  add(app, "--account", "NAME", "who pays", [&](Text text) {
    check_name("--account", text, kAccountOthers);
    line.account = text;
  });
  add(app, "--partition", "NAME", "Slurm: which part of the cluster", [&](Text text) {
    check_name("--partition", text, kPartitionOthers);
    line.partition = text;
  });
  const auto store_sweep = [&line](const std::vector<std::string>& axes) {
    for (const std::string& axis : axes) {
      line.sweep.push_back(parse_sweep(axis));
    }
  };
  app.add_option_function<std::vector<std::string>>(
         "--sweep", store_sweep, "one job per value (and combination, if given several times)")
      ->option_text("KEY=V1,V2,...")
      ->expected(1, -1)
      ->take_all();
}

void store_positional(const std::string& word, CommandLine& line) {
  if (is_digits(word)) {
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

void add_tracking(CLI::App& app, CommandLine& line, std::vector<std::string>& positional) {
  using Text = const std::string&;
  add(app, "--settings-file", "FILE", "whose out_dir is meant",
      [&](Text text) { line.settings_file = text; });
  add(app, "--out-dir", "DIR", "default: the current folder",
      [&](Text text) { line.out_dir = text; });
  app.add_option("what", positional, "numbers of jobs, or the out_dir")
      ->option_text("[JOB...] [DIR]");
  switch (line.action) {
    case Action::kLogs:
      add(app, "--lines", "N", "how many of the last lines (default 40)",
          [&](Text text) { line.lines = parse_integer<int>("--lines", text, 0, kMostJobs); });
      break;
    case Action::kCancel:
      app.add_flag("--all", line.all, "all jobs that are not over");
      break;
    case Action::kResubmit:
      app.add_flag("--failed", line.failed,
                   "all that failed, were refused, lost or never submitted; not those cancelled");
      app.add_flag("--dry-run", line.dry_run, "print the files and commands, submit nothing");
      break;
    default:
      app.add_flag("--json", line.json, "one JSON document instead of the table");
  }
}

/// What only the whole line tells.
void check(const CommandLine& line) {
  if (line.action == Action::kSubmit) {
    if (line.settings_file.empty()) {
      throw UsageError("--settings-file is missing, expected e.g. --settings-file settings.yaml");
    }
    return;
  }
  if (!line.settings_file.empty() && !line.out_dir.empty()) {
    throw UsageError("--settings-file and an out_dir were given, expected one of them");
  }
  const bool picks = line.action == Action::kCancel || line.action == Action::kResubmit;
  const bool everything = line.all || line.failed;
  if (picks && line.jobs.empty() != everything) {
    const std::string flag = line.action == Action::kCancel ? "--all" : "--failed";
    throw UsageError(everything ? flag + " and job numbers were given, expected one of them"
                                : "no job was given, expected job numbers or " + flag);
  }
}

[[noreturn]] void refuse_command(const std::string& word) {
  std::vector<std::string> names;
  for (const auto& [known, command] : commands()) {
    names.push_back(known);
  }
  const std::string guess = nearest(word, names);
  throw UsageError("unknown command " + quote_bytes(word) +
                   (guess.empty() ? ", expected " + any_of(names) + ", or --settings-file FILE"
                                  : ", did you mean " + guess + "?"));
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
  std::string help = kSubmitText;
  if (!given.empty() && !given.front().starts_with('-')) {
    const auto command = commands().find(given.front());
    if (command == commands().end()) {
      refuse_command(given.front());
    }
    line.action = command->second.action;
    help = command->second.help;
    name += " " + given.front();
    given.erase(given.begin());
  }
  if (line.action != Action::kSubmit && line.arguments) {
    throw UsageError("got -- after " + name + ", expected program arguments only in a submission");
  }
  CLI::App app(help, name);
  app.set_version_flag("--version", std::string(kVersion));
  app.get_formatter()->column_width(40);
  app.footer(kExitCodes);
  std::vector<std::string> positional;
  if (line.action == Action::kSubmit) {
    add_submission(app, line);
  } else {
    add_tracking(app, line, positional);
  }
  try {
    std::vector<std::string> arguments = check_names(app, given);
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw UsageError(text + ", expected what --help lists");
  }
  for (const std::string& word : positional) {
    store_positional(word, line);
  }
  check(line);
  return line;
}

}  // namespace ddp::submit
