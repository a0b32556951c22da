// tools/submit/command_line.cpp - the options of submit and of its commands.
#include "common/base/command_line.hpp"

#include <algorithm>
#include <map>

#include "common/base/parse.hpp"
#include "tools/submit/commands.hpp"
#include "tools/submit/text.hpp"

namespace ddp::submit {
namespace {

constexpr const char* kSubmitText =
    "Submits a program to HTCondor or Slurm, or runs it here, as a settings file says.\n"
    "Example: submit --settings-file settings.yaml --sweep lr=0.1,0.01 -- 50 10 --dataset digits\n"
    "     or: submit --program build/bin/03_ddp_spawn --out-dir out --time 6:00:00 -- 50 10\n"
    "What follows -- goes to the program and replaces the settings' arguments.\n"
    "Afterwards: submit list|status|logs|cancel|resubmit, each with its own --help.";

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 the scheduler or a job failed, 2 usage or settings, 75 the scheduler "
    "gave no answer.";

constexpr const char* kOptions = "Options";
constexpr std::size_t kHelpColumn = 40;
constexpr int kMostJobs = 1'000'000;

struct Subcommand {
  Action action;
  const char* help;
};

const std::map<std::string, Subcommand> kSubcommands = {
    {"list", {Action::kList, "Lists the jobs of an out_dir as they were last seen; asks nobody."}},
    {"status",
     {Action::kStatus, "Asks the scheduler about the jobs that are not over, then lists them."}},
    {"logs", {Action::kLogs, "Prints where the jobs' output is, or the end of one job's output."}},
    {"cancel", {Action::kCancel, "Takes jobs out of the queue, or stops them."}},
    {"resubmit",
     {Action::kResubmit,
      "Submits jobs again: those named, or all that failed, were lost or never submitted. They "
      "run in their\nold folders, so a stage goes on from its snapshot."}},
};

Scheduler parse_scheduler(const std::string& name, const std::string& text) {
  const Choices names(kSchedulerNames.begin(), kSchedulerNames.end());
  check_choice(name, text, names);
  return static_cast<Scheduler>(std::find(names.begin(), names.end(), text) - names.begin());
}

/// Stores what check_name lets through.
StoreValue store_name(std::string& target, std::string_view others) {
  return [&target, others](const std::string& name, const std::string& text) {
    check_name(name, text, others);
    target = text;
  };
}

void add_submission(OptionGroup options, Command& command) {
  using Text = const std::string&;
  options.text("--settings-file", "FILE", command.settings_file, "",
               "YAML: what to run, where its output goes, what it needs; see condor/settings.yaml");
  options.text("--program", "FILE", command.program, "",
               "what to run, with --out-dir: instead of a settings file, or of what it says");
  options.text("--out-dir", "DIR", command.out_dir, "", "where everything goes");
  options.value(
      "--scheduler", "condor, slurm or local", "",
      "default: condor, or slurm if only sbatch is here; local runs the jobs here, one by one",
      [&](Text name, Text text) { command.scheduler = parse_scheduler(name, text); });
  options.flag("--dry-run", command.dry_run,
               "print the files and commands, write and submit nothing");
  options.integer("--nodes", command.nodes, std::int64_t{1}, kMostNodes, "",
                  "machines of each job");
  options.values("--gpus", "N N ...",
                 "GPUs of each node: their number counts, a scheduler picks them",
                 [&](Text name, const std::vector<std::string>& gpus) {
                   for (const std::string& gpu : gpus) {
                     const int number = parse_integer<int>(name, gpu, 0, kMostGpus - 1);
                     if (std::count(command.gpus.begin(), command.gpus.end(), number) > 0) {
                       refuse_value(name, gpu + " twice", "different devices");
                     }
                     command.gpus.push_back(number);
                   }
                 });
  options.value("--time", "TIME", "",
                "limit for one start of a job, as Slurm has it: MINUTES, MM:SS, 6:00:00, 1-12",
                [&](Text name, Text text) { command.time_s = parse_time(name, text); });
  options.value("--account", "NAME", "", "who pays", store_name(command.account, kAccountOthers));
  options.value("--partition", "NAME", "", "Slurm: which part of the cluster",
                store_name(command.partition, kPartitionOthers));
  options
      .value("--sweep", "KEY=V1,V2,...", "",
             "one job per value (and combination, if given several times)",
             [&](Text, Text text) { command.sweep.push_back(parse_sweep(text)); })
      .repeatable();
  options.integer("--sweep-limit", command.sweep_limit, std::int64_t{1}, std::int64_t{kMostJobs},
                  "", "how many of them run at once (default: as many as the cluster lets)");
}

void store_positional(const std::string& word, Command& command) {
  if (is_digits(word)) {
    const int job = parse_integer<int>("JOB", word, 0, kMostJobs);
    if (std::count(command.jobs.begin(), command.jobs.end(), job) > 0) {
      refuse("job {} was given twice, expected once", word);
    }
    command.jobs.push_back(job);
  } else if (command.out_dir.empty()) {
    command.out_dir = word;
  } else {
    refuse("unexpected argument {}, expected one out_dir", quote_bytes(word));
  }
}

void add_tracking(OptionGroup options, Command& command) {
  options.text("--settings-file", "FILE", command.settings_file, "", "whose out_dir is meant");
  options.text("--out-dir", "DIR", command.out_dir, "", "default: the current folder");
  options.values("what", "[JOB...] [DIR]", "numbers of jobs, or the out_dir",
                 [&](const std::string&, const std::vector<std::string>& words) {
                   for (const std::string& word : words) {
                     store_positional(word, command);
                   }
                 });
  switch (command.action) {
    case Action::kLogs:
      options.integer("--lines", command.lines, 0, kMostJobs, "",
                      "how many of the last lines (default 40)");
      break;
    case Action::kCancel:
      options.flag("--all", command.all, "all jobs that are not over");
      break;
    case Action::kResubmit:
      options.flag("--failed", command.failed,
                   "all that failed, were refused, lost or never submitted; not those cancelled");
      options.flag("--dry-run", command.dry_run, "print the files and commands, submit nothing");
      break;
    default:
      options.flag("--json", command.json, "one JSON document instead of the table");
  }
}

/// What only the whole line tells.
void check(const Command& command) {
  if (command.action == Action::kSubmit) {
    if (command.settings_file.empty() && (command.program.empty() || command.out_dir.empty())) {
      refuse(
          "--settings-file is missing, expected e.g. --settings-file settings.yaml, or --program "
          "and --out-dir");
    }
    if (command.sweep_limit && command.sweep.empty()) {
      refuse("--sweep-limit {} without --sweep, expected jobs to count", *command.sweep_limit);
    }
    return;
  }
  if (!command.settings_file.empty() && !command.out_dir.empty()) {
    refuse("--settings-file and an out_dir were given, expected one of them");
  }
  const bool picks = command.action == Action::kCancel || command.action == Action::kResubmit;
  const bool everything = command.all || command.failed;
  if (picks && command.jobs.empty() != everything) {
    const std::string flag = command.action == Action::kCancel ? "--all" : "--failed";
    throw UsageError(everything ? flag + " and job numbers were given, expected one of them"
                                : "no job was given, expected job numbers or " + flag);
  }
}

const Subcommand& find_subcommand(const std::string& word) {
  if (const auto known = kSubcommands.find(word); known != kSubcommands.end()) {
    return known->second;
  }
  Choices names;
  for (const auto& [name, subcommand] : kSubcommands) {
    names.push_back(name);
  }
  const std::string guess = nearest(word, names);
  throw UsageError("unknown command " + quote_bytes(word) +
                   (guess.empty() ? ", expected " + join(names) + ", or --settings-file FILE"
                                  : ", did you mean " + guess + "?"));
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  Command command;
  const char* const* const end = std::find_if(
      argv, argv + argc, [](const char* word) { return std::string_view(word) == "--"; });
  if (end != argv + argc) {
    command.arguments.emplace(end + 1, argv + argc);
    for (std::size_t i = 0; i < command.arguments->size(); ++i) {
      check_argument(fmt::format("program argument {}", i + 1), (*command.arguments)[i]);
    }
  }
  std::string name = "submit";
  std::string help = kSubmitText;
  if (argv + 1 < end && *argv[1] != '-') {
    const Subcommand& subcommand = find_subcommand(argv[1]);
    command.action = subcommand.action;
    help = subcommand.help;
    name += " " + std::string(argv[1]);
    ++argv;
  }
  if (command.action != Action::kSubmit && command.arguments) {
    refuse("got -- after {}, expected program arguments only in a submission", name);
  }
  CommandLine line(name, help, "submit " DDP_VERSION, kExitCodes, kHelpColumn);
  (command.action == Action::kSubmit ? add_submission : add_tracking)(line.group(kOptions),
                                                                      command);
  line.parse_strictly(static_cast<int>(end - argv), argv);
  check(command);
  return command;
}

}  // namespace ddp::submit
