// tools/submit/commands.hpp - what submit can be told, and submit as a function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/submit/job.hpp"
#include "tools/submit/plan.hpp"

namespace ddp::submit {

enum class Action { kSubmit, kList, kStatus, kLogs, kCancel, kResubmit };

struct Command {
  Action action = Action::kSubmit;
  std::string settings_file;
  std::string out_dir;  ///< instead of the settings file's

  // Of a submission. What is given replaces what the settings say.
  std::string program;
  std::optional<Scheduler> scheduler;
  bool dry_run = false;
  std::optional<std::int64_t> nodes;
  std::vector<int> gpus;
  std::optional<std::int64_t> time_s;
  std::string account;
  std::string partition;
  std::vector<SweepAxis> sweep;
  std::optional<std::int64_t> sweep_limit;  ///< jobs of the sweep that run at once
  std::optional<std::vector<std::string>> arguments;  ///< behind "--"

  // Of what comes after.
  std::vector<int> jobs;
  bool all = false;
  bool failed = false;
  bool json = false;
  int lines = 40;
};

/// @throws Answered after --help and --version, which are printed here
/// @throws UsageError
Command parse_command_line(int argc, const char* const* argv);

/// Does what the command line says. Prints on standard output, notes on standard error.
/// @return the program's exit code
/// @throws Error @throws Answered as above
int run(int argc, const char* const* argv);

}  // namespace ddp::submit
