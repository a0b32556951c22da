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

}  // namespace ddp::bench
