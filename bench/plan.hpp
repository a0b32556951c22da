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

/// Why something is run.
enum class Role {
  kStage,
  kPeer,
  kControl,  ///< another entry's command once more: how far apart are equal things?
  kNoCommunication,  ///< an entry's command without gradient exchange, for all that compute the
                     ///< same
};
std::string role_name(Role role);

/// One row of the plan: one command, which is run once to compare weights, then timed.
struct Entry {
  Run run;  ///< its description; what is measured is filled in later
  Role role = Role::kStage;
  Start start = Start::kAlone;
  std::string program;  ///< of a stage; a peer's name
  std::string original;  ///< name of the run that a control or a run without communication repeats
  Model model;
  std::int64_t parity_batch = 0;  ///< global batch of the parity run, the same at all world sizes
  int repetitions = 1;

  /// That write metrics.
  int processes() const {
    return start == Start::kAlone || start == Start::kReplicas ? 1 : run.world_size;
  }
};

/// Only who starts the ranks and what carries the gradients may differ: without communication these
/// take the same time.
bool compute_the_same(const Run& a, const Run& b);

struct Plan {
  Settings settings;  ///< with the device that is meant
  std::vector<Entry> entries;
  std::map<std::string, std::string> launchers;  ///< name: path
  std::map<std::string, std::string> pythons;  ///< of peers that are not built here
  std::vector<NotRun> not_run;
  std::vector<std::string> notes;  ///< about what runs, for the screen
};

/// Looks for programs and launchers, trains nothing.
/// @throws UsageError if something that was asked for by name is not there
Plan make_plan(Settings settings);

/// Names as Google Benchmark's tools have them: --benchmark_list_tests.
void list_benchmarks(std::ostream& out, const Plan& plan);

/// A table, and the commands: --dry-run.
void print_plan(std::ostream& out, const Plan& plan);

}  // namespace ddp::bench
