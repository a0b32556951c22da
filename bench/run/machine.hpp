// bench/run/machine.hpp - where and with what the numbers were made.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/run/child_process.hpp"
#include "bench/run/plan.hpp"

namespace ddp::bench {

/// Cores that this process may use, at least 1.
int available_cores();

/// The machine as it is now; what cannot be read is null.
nlohmann::ordered_json describe_machine();

/// Compiler, LibTorch, commit and launchers; what is not known is null.
nlohmann::ordered_json describe_software(const Plan& plan, const std::string& scratch,
                                         Interrupts& interrupts);

/// Asks the launchers for their versions. An mpirun that is not Open MPI's is taken out of the
/// plan, and named there: the stages know the identity of Open MPI's processes only.
void ask_launchers(Plan& plan, const std::string& scratch, Interrupts& interrupts);

}  // namespace ddp::bench
