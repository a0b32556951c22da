// bench/machine.hpp - facts about the machine and the software of a report.
#pragma once

#include "bench/child.hpp"
#include "bench/plan.hpp"

namespace ddp::bench {

/// Installs the peers' packages if they are missing, and fills plan.pythons.
/// @throws UsageError naming a peer that cannot be installed, and why
void install_peers(Plan& plan, Session& session);

/// Makes the packages that runs of the plan train and that are not there. Without one its runs go
/// to plan.not_run.
void compile_steps(Plan& plan, Session& session);

/// Lines of a program's source without blank lines and comments; nothing without the source.
std::optional<std::int64_t> lines_of_code(const Run& run, const std::string& peers_dir);

/// Fills report.machine, software, settings and not_run.
void add_facts(const Plan& plan, Report& report);

/// Watches how much other programs use the cores of this process, time taken by a virtual machine's
/// host included: all time on these cores, without that of this process and its ended children.
class OtherPrograms {
 public:
  /// Looks for a second, and says it if they use a lot.
  explicit OtherPrograms(Session& session);
  /// Adds the cores in use to report.machine, before the runs and since then. If the ranks were no
  /// children of this process, the latter is unknown.
  void add_to(const Plan& plan, Report& report) const;

 private:
  double before_;
  double begin_used_s_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace ddp::bench
