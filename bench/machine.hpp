// bench/machine.hpp - describes the machine and the software of a report.
#pragma once

#include "bench/child.hpp"
#include "bench/plan.hpp"
#include "bench/record.hpp"

namespace ddp::bench {

/// Fills plan.launchers with the wanted launchers, or else with all that are installed, and adds
/// missing launchers to plan.not_run.
/// @throws UsageError if a wanted launcher is missing
void find_launchers(Plan& plan);

/// Installs the peers' packages if they are missing, and fills plan.pythons.
/// @throws UsageError naming a peer that cannot be installed, and why
void install_peers(Plan& plan, Session& session);

/// Lines of a program's source without blank lines and comments; nothing without the source.
std::optional<std::int64_t> lines_of_code(const Run& run, const std::string& peers_dir);

/// Fills report.machine, software, settings and not_run.
void describe(const Plan& plan, Report& report);

}  // namespace ddp::bench
