// bench/machine.hpp - where and with what the numbers are made.
#pragma once

#include "bench/child.hpp"
#include "bench/plan.hpp"
#include "bench/record.hpp"

namespace ddp::bench {

/// Fills plan.launchers with those that were asked for, or else that are there, and says in
/// plan.not_run which are missing.
/// @throws UsageError if one that was asked for is missing
void find_launchers(Plan& plan);

/// Installs what the peers need, unless it is there, and fills in plan.pythons.
/// @throws UsageError naming a peer that cannot be installed, and why
void install_peers(Plan& plan, Session& session);

/// Lines of a program's source without blank lines and comments; nothing if it is not there.
std::optional<std::int64_t> lines_of_code(const Run& run, const std::string& peers_dir);

/// Fills report.machine, software, settings and not_run.
void describe(const Plan& plan, Report& report);

}  // namespace ddp::bench
