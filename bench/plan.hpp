// bench/plan.hpp - the runs of a report, and the number of their repetitions.
#pragma once

#include <iosfwd>

#include "bench/catalog.hpp"
#include "bench/record.hpp"

namespace ddp::bench {

/// Kind of a run that is not in the report: a command without gradient exchange.
inline constexpr const char* kNoCommunication = "no comm";

/// Command that is run once to compare weights, then timed.
struct PlannedRun {
  Run run;  ///< its fields that are known before; run_plan() adds the measurements
  PlanRow row;
  std::string original;  ///< name of the run that a control or a run without communication repeats
  Model model;
  std::int64_t parity_batch = 0;  ///< global batch of the parity run, the same at all world sizes
  int repetitions = 1;
  int named_ranks = 1;  ///< what {ranks} becomes in a command of --program

  bool is_program() const { return !row.command.empty(); }

  /// Number of processes that write metrics.
  int processes() const {
    return row.launch == LaunchKind::kAlone || row.launch == LaunchKind::kReplicas ? 1
                                                                                   : run.world_size;
  }
};

/// True if at most launcher and backend differ: without communication such runs are equally fast.
bool compute_the_same(const Run& a, const Run& b);

struct Plan {
  Settings settings;  ///< with "auto" resolved in `device`
  /// Stage 01 comes before the runs that are compared with it, and an original before its control.
  std::vector<PlannedRun> runs;
  std::map<std::string, std::string> launchers;  ///< name: path
  std::map<std::string, std::string> pythons;  ///< interpreter by peer
  std::vector<NotRun> not_run;
  std::vector<std::string> notes;  ///< notes about the runs, for the screen
};

/// Makes the plan from the installed programs and launchers.
/// @throws UsageError if a program or launcher that the user named is missing
Plan make_plan(Settings settings);

/// Prints names, for --benchmark_list_tests.
void list_benchmarks(std::ostream& out, const Plan& plan);

/// Prints a table and the commands, for --dry-run.
void print_plan(std::ostream& out, const Plan& plan);

}  // namespace ddp::bench
