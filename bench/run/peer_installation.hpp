// bench/run/peer_installation.hpp - gets the other frameworks that --peers asks for.
#pragma once

#include <string>

#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"
#include "bench/run/progress.hpp"

namespace ddp::bench {

/// Runs bench/peers/install.sh for each peer in plan.peer_pythons, which installs what is missing,
/// and fills in its interpreter.
/// @throws UsageError naming a peer that cannot be installed and why
void install_peers(const std::string& scratch, Interrupts& interrupts, Progress& progress,
                   Plan& plan);

}  // namespace ddp::bench
