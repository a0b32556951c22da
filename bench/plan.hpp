// bench/plan.hpp - what is run, why, and how often.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "bench/catalog.hpp"
#include "bench/record.hpp"
#include "bench/settings.hpp"

namespace ddp::bench {

/// Kind of a run that never stands in a report: another entry's command without gradient exchange.
inline constexpr const char* kNoCommunication = "no comm";

/// One row of the plan: one command, which is run once to compare weights, then timed.
struct Entry {
  Run run;  ///< its description; run_plan() fills in the measurements
  Start start = Start::kAlone;
  std::string program;  ///< a stage's program, or a peer's name
  std::string original;  ///< name of the run that a control or a run without communication repeats
  Model model;
  std::int64_t parity_batch = 0;  ///< global batch of the parity run, the same at all world sizes
  int repetitions = 1;

  /// Processes that write metrics.
  int processes() const {
    return start == Start::kAlone || start == Start::kReplicas ? 1 : run.world_size;
  }
};

/// True if only launcher and backend may differ: without communication such runs take equally long.
bool compute_the_same(const Run& a, const Run& b);

struct Plan {
  Settings settings;  ///< with "auto" resolved in `device`
  /// Stage 01 comes before the entries that are compared with it, an original before its
  /// repetition.
  std::vector<Entry> entries;
  std::map<std::string, std::string> launchers;  ///< name: path
  std::map<std::string, std::string> pythons;  ///< interpreter by peer
  std::vector<NotRun> not_run;
  std::vector<std::string> notes;  ///< about what runs, for the screen
};

/// Looks for programs and launchers, trains nothing.
/// @throws UsageError if something that the user named is not there
Plan make_plan(Settings settings);

/// Names for --benchmark_list_tests.
void list_benchmarks(std::ostream& out, const Plan& plan);

/// A table, and the commands: --dry-run.
void print_plan(std::ostream& out, const Plan& plan);

}  // namespace ddp::bench
