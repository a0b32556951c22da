// bench/run/machine.hpp - where and with what the numbers are made: launchers, peers.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"

namespace ddp::bench {

/// Fills plan.launchers with paths; names in the plan what is missing. Starts nothing.
/// @throws UsageError if one that was asked for by name is not there
void find_launchers(Plan& plan);

/// Asks the launchers for their versions. An mpirun that is not Open MPI's is taken out of the
/// plan, and named there: the stages know the identity of Open MPI's processes only.
void ask_launchers(Plan& plan, Session& session);

/// Runs bench/peers/install.sh for each peer in plan.peer_pythons, which installs what is missing,
/// and fills in its interpreter. A peer that nobody asked for is only looked for, and taken out of
/// the plan if it is not there.
/// @throws UsageError naming a peer that cannot be installed and why
void install_peers(Plan& plan, Session& session);

/// Waits until other programs leave the processors alone for a second, so that a build that has
/// just ended, or its load, is no part of the numbers. Says on standard error that and why it does.
/// @param most_s 0: it does not look
/// @return their share in the last second; nothing if nobody looked, or the kernel does not tell
std::optional<double> wait_for_quiet(int most_s, Session& session);

/// The machine as it is now; what cannot be read is null.
/// @param busy_before_share of wait_for_quiet()
nlohmann::ordered_json describe_machine(const std::optional<double>& busy_before_share);

/// Compiler, LibTorch, commit and launchers; what is not known is null.
nlohmann::ordered_json describe_software(const Plan& plan, Session& session);

}  // namespace ddp::bench
